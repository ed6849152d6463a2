//! Semantics of the meta commands.

use super::arithmetic::{Counted, NumberChange};
use super::classic::{StoreOutcome, Way};
use super::item::Found;
use super::{Cache, Change, Item, Now, Store, StoreError};
use crate::classes;
use crate::protocol::{
    Common, Debugged, Key, MetaArithmetic, MetaDelete, MetaGet, MetaReply, MetaSet, Mode, Reply, Shown,
    Spelling,
};

/// Result of a `mg`.
struct Got {
    found: Found,
    /// The item's former expiry time.
    expired: Option<u32>,
    /// This command made the item.
    made: bool,
    won: bool,
    /// Another client had been chosen to store the item anew.
    others: bool,
}

impl<S: Store> Cache<S> {
    pub(super) async fn meta_get(&self, get: &MetaGet, now: Now) -> Result<Reply, StoreError> {
        let MetaGet { key, common, .. } = get;
        let got = self.meta_look(get, now).await?;
        self.count_meta_get(get, got.is_some());
        let Some(Got { found, expired, made, won, others }) = got else {
            return Ok(bare("EN", key, common).unless(common.quiet));
        };
        let (idle, hit) = match (made, get.no_update) {
            (true, _) => (0, false),
            (false, true) => self.look_up_use(key, &found, now),
            (false, false) => self.note_used(key, &found, now),
        };
        let mut reply = MetaReply::bare("HD", key, common);
        let expires = if common.old_time { expired } else { found.item.expires };
        let left = Item { expires, ..found.item }.left(now.seconds());
        reply.item = Some(Shown { idle, hit, won, others, left, ..shown(&found) });
        reply.value = get.value.then(|| found.value().to_vec());
        Ok(Reply::Meta(Box::new(reply)))
    }

    fn count_meta_get(&self, get: &MetaGet, hit: bool) {
        let counters = &self.shared.counters;
        counters.metas.add();
        let (all, hits, misses) = match get.touch {
            Some(_) => (&counters.touches, &counters.touch_hits, &counters.touch_misses),
            None => (&counters.gets, &counters.get_hits, &counters.get_misses),
        };
        all.add();
        if hit { hits.add() } else { misses.add() }
    }

    /// Reads an item, and makes the command's changes to it.
    async fn meta_look(&self, get: &MetaGet, now: Now) -> Result<Option<Got>, StoreError> {
        if get.only_reads() {
            let Some(found) = self.store.get(&get.key).await?.and_then(|bytes| self.live(bytes, now)) else {
                return Ok(None);
            };
            // The choice of a client that stores a stale item anew changes the item.
            if !found.item.stale || found.item.told {
                let others = found.item.told;
                let expired = found.item.expires;
                return Ok(Some(Got { found, expired, made: false, won: false, others }));
            }
        }
        let seconds = now.seconds();
        self.change(&get.key, now, |found| {
            let (mut found, made) = match (found, get.vivify) {
                (Some(found), _) => (found, false),
                (None, None) => return Change::Keep(None),
                (None, Some(expiry)) => {
                    let item = self.new_item(0, expiry.at(seconds), now);
                    (Found::parse(item.with(b"")).expect("it was made just now"), true)
                }
            };
            let before = found.item;
            let expired = before.expires.filter(|_| !made);
            if let Some(expiry) = get.touch {
                found.item.expires = expiry.at(seconds);
            }
            let is_due = |at: u32| get.recache.is_some_and(|limit| limit.at(seconds).unwrap_or(0) > at);
            let others = before.told;
            let won = made || (!others && (before.stale || found.item.expires.is_some_and(is_due)));
            found.item.told |= won;
            if found.item == before && !made {
                return Change::Keep(Some(Got { found, expired, made, won, others }));
            }
            let bytes = found.item.with(found.value());
            Change::Put(bytes, found.item.expires, Some(Got { found, expired, made, won, others }))
        })
        .await
    }

    pub(super) async fn meta_set(&self, set: &mut MetaSet, now: Now) -> Result<Reply, StoreError> {
        self.shared.counters.metas.add();
        let way = Way {
            mode: set.mode,
            flags: set.flags,
            expires: set.expiry.at(now.seconds()),
            // Zero is not a number to compare with, unless the comparison is the only condition.
            cas: set.cas.filter(|cas| *cas != 0 || matches!(set.mode, Mode::Set | Mode::Replace)),
            invalidate: set.invalidate,
        };
        let outcome = self.store_value(&set.key, &mut set.data.bytes, way, now).await?;
        let (code, cas) = match outcome {
            StoreOutcome::Stored(cas) => ("HD", cas),
            StoreOutcome::NotStored => ("NS", 0),
            StoreOutcome::Exists => ("EX", 0),
            StoreOutcome::NotFound => ("NF", 0),
        };
        let mut reply = MetaReply::bare(code, &set.key, &set.common);
        reply.echoes.retain(|echo| {
            use crate::protocol::Echo::{Cas, Key, Opaque};
            matches!(echo, Cas | Key | Opaque(_))
        });
        reply.item = Some(Shown { cas, ..Shown::default() });
        Ok(Reply::Meta(Box::new(reply)).unless(set.common.quiet && code == "HD"))
    }

    pub(super) async fn meta_delete(&self, delete: &MetaDelete, now: Now) -> Result<Reply, StoreError> {
        let MetaDelete { key, common, cas, .. } = delete;
        let counters = &self.shared.counters;
        counters.metas.add();
        let code = if cas.is_none() && !delete.invalidate {
            if self.delete_live(key, now).await? { "HD" } else { "NF" }
        } else {
            self.change(key, now, |found| self.invalidated(delete, found, now)).await?
        };
        match code {
            "HD" => counters.delete_hits.add(),
            _ => counters.delete_misses.add(),
        }
        Ok(bare(code, key, common).unless(common.quiet && code == "HD"))
    }

    fn invalidated(&self, delete: &MetaDelete, found: Option<Found>, now: Now) -> Change<&'static str> {
        let Some(found) = found else { return Change::Keep("NF") };
        if delete.cas.is_some_and(|cas| cas != found.item.cas) {
            return Change::Keep("EX");
        }
        if !delete.invalidate {
            return Change::Remove("HD");
        }
        let mut item = self.changed(found.item, now);
        if let Some(expiry) = delete.expiry {
            item.expires = expiry.at(now.seconds());
        }
        (item.stale, item.told) = (true, false);
        Change::Put(item.with(found.value()), item.expires, "HD")
    }

    pub(super) async fn meta_arithmetic(&self, ask: &MetaArithmetic, now: Now) -> Result<Reply, StoreError> {
        let &MetaArithmetic { ref key, ref common, value, direction, by, cas, touch, vivify, initial } = ask;
        self.shared.counters.metas.add();
        let number_change =
            NumberChange { direction, by, cas, touch, initial: vivify.map(|expiry| (initial, expiry)) };
        // As in memcached, `q` leaves out the answer about a number that was there, not about one that the request made.
        let (number, item, is_quiet) = match self.count(key, number_change, now).await? {
            Counted::Number(number, item) => (number, item, common.quiet),
            Counted::Made(number, item) => (number, item, false),
            Counted::Missing => return Ok(bare("NF", key, common)),
            Counted::Exists => return Ok(bare("EX", key, common)),
            Counted::NoNumber => {
                return Ok(Reply::Text("CLIENT_ERROR cannot increment or decrement non-numeric value"));
            }
        };
        let mut reply = MetaReply::bare("HD", key, common);
        reply.echoes.retain(|echo| {
            use crate::protocol::Echo::{Cas, Key, Opaque, TimeToLive};
            matches!(echo, Cas | Key | Opaque(_) | TimeToLive)
        });
        reply.item = Some(Shown { cas: item.cas, left: item.left(now.seconds()), ..Shown::default() });
        reply.value = value.then(|| number.to_string().into_bytes());
        Ok(Reply::Meta(Box::new(reply)).unless(is_quiet))
    }

    pub(super) async fn meta_debug(
        &self,
        key: &Key,
        spelling: Spelling,
        now: Now,
    ) -> Result<Reply, StoreError> {
        self.shared.counters.metas.add();
        let Some(found) = self.store.get(key).await?.and_then(|bytes| self.live(bytes, now)) else {
            return Ok(Reply::Text("EN"));
        };
        let (idle, hit) = self.look_up_use(key, &found, now);
        let (left, cas) = (found.item.left(now.seconds()), found.item.cas);
        let takes = self.store.takes(key.len(), found.bytes.len());
        let key = key.clone();
        let (class, takes) = (classes::number_of(takes.size), takes.bytes);
        Ok(Reply::Debug(Box::new(Debugged { key, spelling, left, idle, cas, hit, class, takes })))
    }
}

fn bare(code: &'static str, key: &Key, common: &Common) -> Reply {
    Reply::Meta(Box::new(MetaReply::bare(code, key, common)))
}

fn shown(found: &Found) -> Shown {
    Shown {
        size: found.value().len() as u64,
        cas: found.item.cas,
        flags: found.item.flags,
        stale: found.item.stale,
        ..Shown::default()
    }
}
