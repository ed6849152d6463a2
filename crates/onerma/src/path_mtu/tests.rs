use super::*;

const NODE: ([u8; 4], u16) = ([10, 0, 0, 1], 7);
const SECRET: u64 = u64::MAX;

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A path that loses datagrams longer than its MTU, in each direction, and answers the rest at once.
struct Path {
    mtu: PathMtu,
    carries: [usize; 2],
    now: Duration,
    /// Bytes of all probes so far.
    probes: Vec<usize>,
}

impl Path {
    fn new(found: usize, most: usize) -> Self {
        let mtu = PathMtu::new(NODE.into(), found, most, SECRET);
        Self { mtu, carries: [most; 2], now: Duration::ZERO, probes: Vec::new() }
    }

    /// Carries probes and their answers, and advances the time by `millis` milliseconds.
    fn pass(&mut self, millis: u64) {
        let until = self.now + at(millis);
        loop {
            let mut probe = Vec::new();
            while let Some(to) = self.mtu.poll_probe(&mut probe) {
                self.probes.push(probe.len());
                let is_carried = self.carries.iter().all(|&carries| probe.len() <= carries);
                assert!(probe::answer(&mut probe));
                if is_carried {
                    assert!(self.mtu.handle_answer(to, &probe, self.now));
                }
                probe.clear();
            }
            let Some(due) = self.mtu.next_timeout().filter(|&due| due <= until) else { break };
            self.now = self.now.max(due);
            self.mtu.handle_timeout(self.now);
        }
        self.now = until;
    }

    /// Performs an operation whose data is one datagram of the size in use. Returns whether it succeeded.
    fn operate(&mut self, direction: Direction) -> bool {
        let (bytes, sent) = (self.mtu.datagram_max(), self.now);
        let is_carried = bytes <= self.carries[direction as usize];
        self.pass(if is_carried { 1 } else { 60 });
        match is_carried {
            true => self.mtu.carried(direction, bytes, self.now),
            false => self.mtu.lost(direction, bytes, sent, self.now),
        }
        is_carried
    }
}

fn sizes() -> [usize; 4] {
    probe::sizes(usize::MAX).try_into().expect("four sizes")
}

#[test]
fn a_size_that_is_lost_in_either_direction_is_lowered_to_what_the_path_carries() {
    let sizes = sizes();
    for direction in [Direction::ToNode, Direction::ToClient] {
        for (place, &carried) in sizes.iter().enumerate().take(3) {
            let mut path = Path::new(sizes[3], sizes[3]);
            assert!(path.operate(direction));
            path.carries[direction as usize] = carried + 1;
            // Small datagrams are still carried, and are no evidence about the size in use.
            let small = path.mtu.base();
            path.mtu.carried(direction, small, path.now);
            assert!(!path.operate(direction));
            assert_eq!(path.mtu.datagram_max(), sizes[0], "the smallest until the path has answered");
            path.pass(1);
            assert_eq!(path.mtu.datagram_max(), sizes[place]);
            assert!(path.operate(direction), "the next operation gets through");
        }
    }
}

#[test]
fn an_operation_that_is_lost_while_others_as_large_get_through_changes_nothing() {
    let mut path = Path::new(4224, 4224);
    let sent = path.now;
    path.pass(1);
    assert!(path.operate(Direction::ToClient));
    path.mtu.lost(Direction::ToClient, 4224, sent, path.now);
    assert_eq!((path.mtu.datagram_max(), path.probes.len()), (4224, 0));
    // Datagrams that are carried to the client are no evidence about the other direction. The path's answers show that
    // nothing is wrong.
    path.mtu.lost(Direction::ToNode, 4224, sent, path.now);
    path.pass(1);
    assert_eq!((path.mtu.datagram_max(), path.probes.len()), (4224, 4));
    assert_eq!(path.mtu.next_timeout(), None);
}

#[test]
fn datagrams_that_the_system_refuses_are_shorter_at_once_and_no_others() {
    let sizes = sizes();
    let mut path = Path::new(sizes[3], sizes[3]);
    path.mtu.too_long(sizes[3], path.now);
    assert_eq!(path.mtu.datagram_max(), sizes[2]);
    path.mtu.too_long(sizes[3], path.now);
    assert_eq!(path.mtu.datagram_max(), sizes[2], "the same datagrams");
    path.mtu.too_long(sizes[0], path.now);
    assert_eq!(path.mtu.datagram_max(), sizes[0], "nothing shorter is of use");
}

#[test]
fn a_larger_size_is_found_again_by_a_timer_that_slows_down() {
    let sizes = sizes();
    let mut path = Path::new(sizes[3], sizes[3]);
    path.carries = [1300; 2];
    assert!(!path.operate(Direction::ToNode));
    let begun = path.now;
    path.pass(600_000);
    let rounds = path.probes.iter().filter(|&&bytes| bytes == sizes[3]).count();
    assert!((3..=60).contains(&rounds), "{rounds} rounds in ten minutes");
    assert_eq!(path.mtu.datagram_max(), sizes[0]);
    path.carries = [1 << 16; 2];
    path.pass(2 * 600_000);
    assert_eq!(path.mtu.datagram_max(), sizes[3]);
    let probes = path.probes.len();
    path.pass(600_000);
    assert_eq!(path.probes.len(), probes, "nothing is left to find");
    // After a long time without trouble the timer is short again.
    path.carries = [1300; 2];
    assert!(!path.operate(Direction::ToNode));
    path.pass(1_000);
    path.carries = [1 << 16; 2];
    path.pass(3_000);
    assert_eq!(path.mtu.datagram_max(), sizes[3], "{begun:?} to {:?}", path.now);
}

#[test]
fn a_node_that_stands_still_costs_no_size() {
    let sizes = sizes();
    let mut path = Path::new(sizes[3], sizes[3]);
    path.carries = [0; 2];
    assert!(!path.operate(Direction::ToClient));
    path.pass(20_000);
    assert!(path.probes.len() < 200, "{} probes", path.probes.len());
    path.carries = [1 << 16; 2];
    path.pass(1_000);
    assert_eq!(path.mtu.datagram_max(), sizes[3], "the first round that is answered says all");
}

#[test]
fn answers_that_nobody_asked_for_change_nothing() {
    let sizes = sizes();
    let mut path = Path::new(sizes[0], sizes[3]);
    path.mtu.handle_timeout(at(2_000));
    let mut probe = Vec::new();
    let to = path.mtu.poll_probe(&mut probe).expect("a probe");
    assert!(probe::answer(&mut probe));
    let stranger = SocketAddr::from(([10, 0, 0, 2], 7));
    let mut answer = probe.clone();
    answer.resize(sizes[3], 0);
    path.mtu.handle_answer(stranger, &answer, path.now);
    // Another token, such as that of an earlier search.
    answer[4] ^= 1;
    path.mtu.handle_answer(to, &answer, path.now);
    answer[4] ^= 1;
    answer.truncate(sizes[3] - 1);
    path.mtu.handle_answer(to, &answer, path.now);
    assert_eq!(path.mtu.datagram_max(), sizes[0]);
    assert!(
        !path.mtu.handle_answer(to, &[1, 2, 3], path.now),
        "an answer of an operation is for the operation"
    );
    answer.resize(sizes[3], 0);
    path.mtu.handle_answer(to, &answer, path.now);
    assert_eq!(path.mtu.datagram_max(), sizes[3]);
}

#[test]
fn a_path_that_may_have_the_smallest_size_only_is_never_probed() {
    for most in [90, sizes()[0]] {
        let mut path = Path::new(most, most);
        path.carries = [0; 2];
        assert!(!path.operate(Direction::ToNode));
        path.pass(1_000_000);
        assert_eq!((path.mtu.datagram_max(), path.probes.len()), (most, 0));
    }
}
