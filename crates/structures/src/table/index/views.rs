//! The way to the buckets in which a key can be.

use super::{Bucket, Candidates, Index, KeyHash, View};
use crate::pipeline::Awaited;
use crate::table::TableError;
use crate::table::leases::{Leased, Part};
use crate::table::shape::{COMBINED_BYTES, SHARED_AT, TableOptions, bucket_at};
use portcullis::{BarePermission, Buffer, Clock, VerbsEndpoint};
use std::rc::Rc;

/// Number of times that a bucket's links are followed before the table counts as damaged. Each time takes a round trip.
const FOLLOWED_MAX: u32 = 1_000;

/// A view whose buckets were requested.
pub(in crate::table) struct AskedView<'p, E: VerbsEndpoint, C: Clock> {
    subtable: u32,
    /// The bucket with which each read begins.
    firsts: [u32; 2],
    reads: [Awaited<'p, E, C, Buffer<E::Memory>>; 2],
}

/// The next place to search for a key that a bucket does not have.
#[derive(Clone, Copy, Debug)]
enum Next {
    Child(u32),
    Parent(u32),
}

impl<E: VerbsEndpoint, C: Clock> Index<E, C> {
    /// Reads all buckets in which a key can be: two reads in one doorbell, and more only during a split.
    #[inline]
    pub async fn view(&self, view: &mut View, hash: KeyHash) -> Result<(), TableError> {
        let asked = match self.ask_view(hash) {
            Some(asked) => asked,
            None => {
                let subtable = self.routes.borrow().of(hash.suffix);
                let permission = Box::pin(self.subtable(subtable).permission()).await?;
                self.ask_view_under(&permission, subtable, hash)
            }
        };
        self.take_view(view, asked, hash).await
    }

    /// Requests all buckets in which a key can be, if the handle has the permission for that.
    #[inline]
    pub fn ask_view(&self, hash: KeyHash) -> Option<AskedView<'_, E, C>> {
        let subtable = self.routes.borrow().of(hash.suffix);
        let permission = self.leases.fresh(Part::Subtable(subtable))?;
        Some(self.ask_view_under(&permission, subtable, hash))
    }

    #[inline]
    fn ask_view_under(
        &self,
        permission: &Rc<BarePermission>,
        subtable: u32,
        hash: KeyHash,
    ) -> AskedView<'_, E, C> {
        let [one, other] = hash.choices.map(TableOptions::combined);
        let read = |first| self.pipeline.read(permission, bucket_at(first) - SHARED_AT, COMBINED_BYTES);
        AskedView { subtable, firsts: [one, other], reads: [read(one), read(other)] }
    }

    /// Takes the buckets that were requested.
    #[inline]
    pub async fn take_view(
        &self,
        view: &mut View,
        AskedView { subtable, firsts, reads }: AskedView<'_, E, C>,
        hash: KeyHash,
    ) -> Result<(), TableError> {
        view.clear();
        for (first, read) in firsts.into_iter().zip(reads) {
            view.add(subtable, first, &self.pipeline.words(read.await?));
        }
        for bucket in view.buckets_mut() {
            if !bucket.header.has(hash.suffix) {
                // This happens only during a split: the future is boxed, so that a get stays small.
                *bucket = Box::pin(self.follow(*bucket, hash.suffix)).await?;
            }
        }
        Ok(())
    }

    /// Takes the buckets that were requested, for a get. `None`: the slots in which the key may be are not all there. A
    /// split has moved some of the buckets, or more slots than usual have the key's fingerprint.
    #[inline]
    pub async fn take_candidates(
        &self,
        AskedView { subtable, firsts, reads: [one, other] }: AskedView<'_, E, C>,
        hash: KeyHash,
    ) -> Result<Option<Candidates>, TableError> {
        let mut candidates = Candidates::default();
        let words = self.pipeline.words(one.await?);
        if !candidates.add(subtable, firsts[0], &words, hash) {
            return Ok(None);
        }
        let words = self.pipeline.words(other.await?);
        Ok(candidates.add(subtable, firsts[1], &words, hash).then_some(candidates))
    }

    /// Follows links from a bucket that does not have the keys with this hash to the bucket that has them.
    async fn follow(&self, mut bucket: Bucket, suffix: u32) -> Result<Bucket, TableError> {
        // The parent's header was changed after the child's bucket was filled. So a child's bucket that was read after
        // the parent's header had changed is in use, whatever its own header contains.
        let mut is_in_use = bucket.header.is_published();
        for _ in 0..FOLLOWED_MAX {
            if is_in_use && bucket.header.covers(suffix) {
                let depth = bucket.header.depth();
                self.routes.borrow_mut().learn(suffix, depth, bucket.subtable);
                return Ok(bucket);
            }
            let next = self.next_subtable(&bucket, is_in_use, suffix).await?;
            let (Next::Child(subtable) | Next::Parent(subtable)) = next;
            bucket = self.read_bucket(subtable, bucket.number).await?;
            is_in_use = bucket.header.is_published() || matches!(next, Next::Child(_));
        }
        Err(TableError::Damaged { subtable: bucket.subtable, bucket: bucket.number })
    }

    async fn next_subtable(&self, bucket: &Bucket, is_in_use: bool, suffix: u32) -> Result<Next, TableError> {
        let links = self.links(bucket.subtable).await?;
        let up = Next::Parent(links.parent.unwrap_or(0));
        let differs = (bucket.header.suffix() ^ suffix).trailing_zeros();
        if !is_in_use || differs < links.birth_depth {
            return Ok(up);
        }
        let child = links.child(differs).map(Next::Child);
        child.ok_or(TableError::Damaged { subtable: bucket.subtable, bucket: bucket.number })
    }
}
