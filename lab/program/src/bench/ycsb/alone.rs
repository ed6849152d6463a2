//! A loaded table on a node of its own, under one mechanism, which several numbers of clients use one after another.

use super::super::BenchError;
use super::super::rivals::{Comparison, Measured, Rival};
use super::client::{self, Turn};
use super::loaded::{Loaded, Shape};
use super::workload::{Drawn, Workload};
use super::{BenchYcsbOptions, DEPTH};
use portcullis_structures::table::{BlockMemory, Grain};

/// A loaded table.
pub struct TableAlone {
    options: BenchYcsbOptions,
    rival: Rival<Loaded>,
    /// The operations of each client that were drawn for a workload.
    drawn: Option<(Workload, Vec<Vec<Drawn>>)>,
}

impl TableAlone {
    /// Starts the node and loads the table. Up to `clients` clients will use it at once.
    pub fn load(
        comparison: Comparison,
        (keys, value_bytes): (u32, u32),
        clients: u32,
    ) -> Result<Self, BenchError> {
        let options = BenchYcsbOptions {
            workload: Vec::new(),
            value_bytes: vec![value_bytes],
            grain: Vec::new(),
            blocks: Vec::new(),
            chunk_bytes: 0,
            keys,
            clients,
            depth: DEPTH,
            lease: None,
            memory: None,
            comparison,
        };
        let shape = Shape { value_bytes, grain: Grain::Extent, blocks: BlockMemory::Objects };
        let rival = super::load(&options, shape)?.pop().expect("there is one mechanism");
        Ok(Self { options, rival, drawn: None })
    }

    /// Bytes of the node's memory that the table takes.
    pub fn bytes(&self) -> u64 {
        self.rival.state.statistics.bytes
    }

    /// Measures a workload of this many clients, at most as many as [`load`](Self::load) was told.
    pub fn measure(
        &mut self,
        workload: Workload,
        clients: usize,
        name: &str,
    ) -> Result<Measured, BenchError> {
        if self.drawn.as_ref().is_none_or(|(drawn, _)| *drawn != workload) {
            self.drawn = Some((workload, self.options.draw(workload)));
        }
        let (_, drawn) = self.drawn.as_ref().expect("it was drawn just now");
        let (options, rival) = (&self.options, &self.rival);
        let (address, contents) = (rival.address(), &rival.state.contents);
        let turn = Turn { options, address, contents, length: options.comparison.turn(), name };
        client::measure(turn, &drawn[..clients])
    }
}
