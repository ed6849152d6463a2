//! Several requests or operations at once, as one.

use portcullis::Error;
use std::pin::Pin;
use std::task::Poll;

/// Waits for several requests. All of them are made at once. The results are in the requests' order.
pub(crate) async fn all<T>(
    requests: impl IntoIterator<Item: Future<Output = Result<T, Error>>>,
) -> Result<Vec<T>, Error> {
    let under_way: Vec<_> = requests.into_iter().collect();
    let mut results = Vec::with_capacity(under_way.len());
    for request in under_way {
        results.push(request.await?);
    }
    Ok(results)
}

/// Carries two operations out at once, as one.
pub(crate) async fn both<F: Future, G: Future>(
    mut first: Pin<&mut F>,
    mut second: Pin<&mut G>,
) -> (F::Output, G::Output) {
    let (mut of_first, mut of_second) = (None, None);
    std::future::poll_fn(|context| {
        if of_first.is_none()
            && let Poll::Ready(done) = first.as_mut().poll(context)
        {
            of_first = Some(done);
        }
        if of_second.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(context)
        {
            of_second = Some(done);
        }
        if of_first.is_some() && of_second.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (of_first.expect("it has ended"), of_second.expect("it has ended"))
}

/// Carries several operations of one pipeline out at once, as one. The results are in the operations' order.
///
/// Each time one of them can go on, all are polled: this is for some dozens of operations.
pub async fn join<F: Future>(operations: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut under_way: Vec<_> = operations.into_iter().map(|operation| Some(Box::pin(operation))).collect();
    let mut results: Vec<Option<F::Output>> = under_way.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (operation, result) in under_way.iter_mut().zip(&mut results) {
            if let Some(running) = operation
                && let Poll::Ready(done) = running.as_mut().poll(context)
            {
                *result = Some(done);
                *operation = None;
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
