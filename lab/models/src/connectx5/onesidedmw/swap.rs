//! OneSidedMW's swap: the part of the held memory that is used, and the time of a page.

use super::super::inputs::{Inputs, micro};
use super::super::rig::SEED;
use super::super::{Effort, Progress};
use super::chains::PoolCosts;
use super::store::by_message;
use super::swap_space::{APPLICATIONS, Sizes, Usage};
use super::times::Timed;
use crate::report::OutputRow;
use crate::time::Nanos;
use portcullis_offload::chain::{Count, Label, Line, Listing, Operand, Queue, RowOperation};

const MEMORY: &str = "OneSidedMW: memory";
const SWAP: &str = "OneSidedMW: swap";
/// The slides' numbers for whole applications.
const OVER_STATIC: f64 = 3.8;
const OVER_MESSAGES: f64 = 1.197;
const OVER_PAGING: f64 = 1.258;
const PAGING_TIMES: f64 = 3.2;
const TRACE: &str = "applications that are assumed, with all that they swap";
const MOST: &str =
    "of an application that does nothing but swap: the most, since the slides' applications also compute";

/// Returns the listing of on-demand paging by the NIC (ODRP): each access reads a translation into the request that
/// moves the page, which is enabled then. The client's request is received into the translation's request.
fn paging() -> Listing {
    let translation = RowOperation::Read { from: Operand::Table(0), bytes: 8, to: Operand::Scratch(0) };
    Listing::EMPTY
        .row(Line::AwaitRequest, RowOperation::Wait { count: Count::Requests, threshold: 1 })
        .with(portcullis_offload::chain::Row {
            label: Label(Line::Other, 0),
            releases: false,
            operation: translation,
        })
        .row(Line::EnableReply, RowOperation::Enable { queue: Queue::Reply, limit: 1 })
}

/// Returns the mean time of a request at a server that `clients` share, each of which pauses for `pause` between two
/// requests. Pauses and services are random (mean value analysis). Times are in ns.
fn shared(clients: u64, pause: f64, service: f64) -> f64 {
    let mut queue = 0.0;
    let mut response = service;
    for number in 1..=clients.max(1) {
        response = service * (1.0 + queue);
        queue = number as f64 * response / (pause + response);
    }
    response
}

/// The time of a page, in ns, with the application's computing beside it.
struct Pages<'a> {
    inputs: &'a Inputs,
    pool: PoolCosts,
    /// Computing time of an application for each page that it swaps.
    computing: f64,
}

impl Pages<'_> {
    fn moved(&self) -> f64 {
        let prices = &self.inputs.one_sided;
        (prices.page_bytes * 1_000 / prices.link_bytes.max(1)) as f64
    }

    fn own(&self) -> f64 {
        self.computing + self.inputs.one_sided.kernel_ns as f64
    }

    fn in_a_segment(&self) -> f64 {
        sizes(self.inputs).pages_of_a_segment() as f64
    }

    fn in_static(&self) -> f64 {
        self.own() + self.inputs.network_ns as f64 + self.moved()
    }

    /// Returns the time of a page if all pages of a segment share one allocation by chain. Each page is written once.
    fn by_chain(&self) -> f64 {
        let armed = self.pool.armed * self.inputs.one_sided.machines;
        let network = self.inputs.network_ns as f64 * self.inputs.one_sided.read_factor(armed);
        self.own() + network + self.moved() + self.pool.allocation_ns as f64 / self.in_a_segment()
    }

    /// Returns the time of a page if segments are allocated by message. All machines share the node's cores.
    fn by_message(&self, cpu: Nanos) -> f64 {
        let prices = &self.inputs.one_sided;
        let page = self.in_static();
        let answer = (self.inputs.network_ns + self.inputs.bind_ns) as f64;
        let service = cpu as f64 / prices.cores.max(1) as f64;
        let waited = shared(prices.machines, page * self.in_a_segment() + answer, service);
        page + (answer + waited) / self.in_a_segment()
    }

    /// Returns the time of a page if each page is moved by way of a chain.
    fn by_paging(&self) -> f64 {
        self.own() + access_by_paging(self.inputs)
    }

    /// Returns how many times as long as a page by chain another page takes.
    fn gain(&self, other: f64) -> f64 {
        other / self.by_chain()
    }

    fn over_static(&self) -> f64 {
        100.0 * (self.by_chain() / self.in_static() - 1.0)
    }
}

fn access_by_paging(inputs: &Inputs) -> f64 {
    let listing = paging();
    let timed = Timed::listing(inputs, &listing, inputs.one_sided.page_bytes);
    (inputs.network_ns + timed.answer_ns()) as f64
}

fn sizes(inputs: &Inputs) -> Sizes {
    let prices = &inputs.one_sided;
    Sizes { segment_bytes: prices.segment_bytes, page_bytes: prices.page_bytes, run_pages: prices.run_pages }
}

pub(super) fn swap(inputs: &Inputs, effort: Effort, progress: &mut Progress<'_>) -> Vec<OutputRow> {
    progress.step(&format!("{MEMORY}: swap"));
    let mut rows = utilization(inputs);
    progress.step(&format!("{SWAP}: pages"));
    let pool = PoolCosts::new(inputs, inputs.one_sided.segment_bytes);
    let pages = Pages { inputs, pool, computing: 0.0 };
    let cpu = by_message(inputs, effort);
    let zeroing = inputs.one_sided.segment_bytes * 1_000 / inputs.copy_bytes.max(1);
    rows.push(
        OutputRow::new(SWAP, "a page of static memory", "µs", pages.in_static() / 1e3)
            .reading("the kernel, the network, and the page's bytes"),
    );
    rows.extend(times(&pages, cpu, zeroing));
    rows.extend(paged(&pages));
    rows.extend(computed(&pages, cpu, zeroing));
    rows
}

fn utilization(inputs: &Inputs) -> Vec<OutputRow> {
    let said = "slides: 1.5 to 2.4 times higher utilization than Static-MR";
    let row = |what: String, gain| OutputRow::new(MEMORY, what, "times", gain).said(said);
    let mut all = Usage::default();
    let mut rows = Vec::new();
    for (number, application) in (0..).zip(APPLICATIONS) {
        let usage = application.run(sizes(inputs), SEED + number);
        all.add(usage);
        rows.push(
            row(format!("swap utilization, {}", application.name), usage.gain())
                .reading(format!("{:.0} % of what is mapped is used, for {TRACE}", usage.used_percent())),
        );
    }
    let gain = all.gain();
    let verdict = if (1.5..=2.4).contains(&gain) { "within" } else { "NOT within" };
    rows.push(row("swap utilization, all of them".to_owned(), gain).reading(format!(
        "{verdict} the slides' range, for {TRACE}. It is the partitions' peaks over what is mapped, whatever operations \
         take"
    )));
    rows
}

fn times(pages: &Pages<'_>, cpu: Nanos, zeroing: Nanos) -> [OutputRow; 3] {
    let static_said = "slides: at most 3.8 % over Static-MR";
    let messages_said = "slides: 19.7 % better than RPC-MW";
    let row = |what: &str, unit, value| OutputRow::new(SWAP, what, unit, value);
    [
        row("a page by chain, beyond one of static memory", "% longer", pages.over_static())
            .paper(OVER_STATIC, static_said)
            .reading(format!("an allocation for each {} pages, and slower READs; {MOST}", pages.in_a_segment())),
        row("over RPC-MW", "times", pages.gain(pages.by_message(cpu)))
            .paper(OVER_MESSAGES, messages_said)
            .reading(
                "below 1: by message a page takes less time here. The real node's CPU time for an allocation is short, and a \
                 segment has so many pages that messages hardly show. What the slides' node does for each they do not say",
            ),
        row("over RPC-MW that zeroes segments", "times", pages.gain(pages.by_message(cpu + zeroing)))
            .paper(OVER_MESSAGES, messages_said)
            .reading(format!(
                "the same, with {} µs in which the node's core zeroes the segment, as the chain does on the NIC. This \
                 node does so where another tenant had it",
                micro(zeroing)
            )),
    ]
}

fn paged(pages: &Pages<'_>) -> [OutputRow; 2] {
    let read = pages.inputs.network_ns as f64 + pages.moved();
    [
        OutputRow::new(SWAP, "an access by on-demand paging", "times a READ", access_by_paging(pages.inputs) / read)
            .paper(PAGING_TIMES, "slides: 3.2 times higher access latency")
            .reading(
                "a translation, and a transfer that is let run behind it: no more than that has to be there. ODRP's own \
                 chain is not in the slides",
            ),
        OutputRow::new(SWAP, "over on-demand paging", "times", pages.gain(pages.by_paging()))
            .paper(OVER_PAGING, "slides: 25.8 % better than ODRP")
            .reading(MOST),
    ]
}

/// Returns the computing that the applications would have if one of the slides' results held, and the other results
/// that follow from it. The real computing of the applications cannot be known.
fn computed(pages: &Pages<'_>, cpu: Nanos, zeroing: Nanos) -> [OutputRow; 4] {
    let computing = (pages.by_paging() - OVER_PAGING * pages.by_chain()) / (OVER_PAGING - 1.0);
    let computing = computing.max(0.0);
    let busy = Pages { computing, ..*pages };
    let row = |what: &str, unit, value| {
        OutputRow::new(SWAP, format!("if 25.8 % over on-demand paging held: {what}"), unit, value)
    };
    let turned = "follows from one published result, and so is no confirmation of that one";
    [
        row("computing for each page", "µs", computing / 1e3).said("no number in the slides").reading(turned),
        row("a page by chain, beyond one of static memory", "% longer", busy.over_static())
            .paper(OVER_STATIC, "slides: at most 3.8 % over Static-MR"),
        row("over RPC-MW", "times", busy.gain(busy.by_message(cpu)))
            .paper(OVER_MESSAGES, "slides: 19.7 % better than RPC-MW"),
        row("over RPC-MW that zeroes segments", "times", busy.gain(busy.by_message(cpu + zeroing)))
            .paper(OVER_MESSAGES, "slides: 19.7 % better than RPC-MW")
            .reading(
                "the two published gains do not fit together here: an application that computes so much asks for too few                  segments to wait for the node's core",
            ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_nobody_else_uses_answers_in_its_own_time_and_a_full_one_in_turns() {
        assert!((shared(1, 5.0, 3.0) - 3.0).abs() < 1e-9);
        assert!((shared(7, 0.0, 3.0) - 21.0).abs() < 1e-9, "all stand in line");
        assert!(shared(6, 1e9, 3.0) < 3.001);
    }

    #[test]
    fn an_access_by_paging_is_let_run_once_its_translation_has_landed() {
        let listing = paging();
        let inputs = Inputs::default();
        assert_eq!(Timed::listing(&inputs, &listing, 4096).segments(), 2);
    }
}
