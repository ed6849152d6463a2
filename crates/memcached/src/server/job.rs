//! Requests that are one operation of a thread's pipeline.

use super::table::TableStore;
use crate::cache::{Cache, Now, StoreError};
use crate::protocol::{Expiry, Get, Reply, Request};

/// Requests that are carried out one after another, each with the place of its answer in its round.
pub enum Job {
    /// Reads of keys, all at once.
    Gets(Vec<(usize, Get)>),
    One(usize, Request),
    /// Requests about one key.
    Several(Vec<(usize, Request)>),
    Flush(usize, Expiry),
    /// A request that was too much at once with others.
    Alone(usize, Request),
}

/// The place of an answer, the request if it may be tried again, and its result.
pub type Done = (usize, Option<Request>, Result<Reply, StoreError>);

/// Carries a job out.
pub async fn perform(cache: &Cache<TableStore>, job: Job, now: Now) -> Vec<Done> {
    match job {
        Job::One(at, mut request) => {
            let result = cache.perform(&mut request, now).await;
            vec![(at, Some(request), result)]
        }
        Job::Several(several) => {
            let mut done = Vec::with_capacity(several.len());
            for (at, mut request) in several {
                let result = cache.perform(&mut request, now).await;
                done.push((at, Some(request), result));
            }
            done
        }
        Job::Alone(at, mut request) => {
            let result = cache.perform(&mut request, now).await;
            vec![(at, None, result)]
        }
        Job::Flush(at, delay) => {
            let result = cache.flush(delay, now).await.map(|()| Reply::Text("OK"));
            vec![(at, None, result)]
        }
        Job::Gets(mut gets) => {
            let mut all: Vec<&mut Get> = gets.iter_mut().map(|(_, get)| get).collect();
            match cache.get_all(&mut all, now).await {
                Ok(replies) => {
                    gets.into_iter().zip(replies).map(|((at, _), reply)| (at, None, Ok(reply))).collect()
                }
                // One by one, so that one that fails does not affect the others.
                Err(_) => {
                    let mut done = Vec::with_capacity(gets.len());
                    for (at, get) in gets {
                        let mut request = Request::Get(get);
                        let result = cache.perform(&mut request, now).await;
                        done.push((at, Some(request), result));
                    }
                    done
                }
            }
        }
    }
}
