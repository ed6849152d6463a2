//! Operations on a table as events of its histories.

use portcullis_histories::key::Event;
use portcullis_structures::table::{Stored, Table, TableError};

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..8].try_into().expect("values begin with their number"))
}

/// Carries out the operation of `event`. Returns the event with its result.
pub async fn perform(table: &Table, key: u64, event: Event) -> Result<Event, TableError> {
    let key = key.to_le_bytes();
    // Most values are so long that a torn value would be noticed, and that their blocks are soon used again: an extent
    // has few.
    let value = |number: u64| {
        let length = 8 + usize::try_from(number % 4).expect("small") * (10 << 10);
        number.to_le_bytes().into_iter().cycle().take(length).collect::<Vec<u8>>()
    };
    Ok(match event {
        Event::Get(_) => {
            let found = table.get(&key).await?;
            let whole = found.as_ref().is_none_or(|it| *it == value(number(it)));
            assert!(whole, "a torn value: {found:?}");
            Event::Get(found.map(|it| number(&it)))
        }
        Event::Insert(new, _) => Event::Insert(new, table.insert(&key, &value(new)).await?),
        Event::Update(new, _) => Event::Update(new, table.update(&key, &value(new)).await?),
        Event::Upsert(new) => {
            let stored = table.upsert(&key, &value(new)).await?;
            assert_ne!(stored, Stored::Unchanged);
            Event::Upsert(new)
        }
        Event::Remove(_) => Event::Remove(table.remove(&key).await?),
        Event::Exchange(old, new, _) => {
            Event::Exchange(old, new, table.compare_and_set(&key, &value(old), &value(new)).await?)
        }
    })
}
