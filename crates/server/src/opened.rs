//! What a server opens of its data before it takes its first request: the journal, the store, and
//! what both know of what was spent.
//!
//! It decides nothing: what can't be opened is an error, and nothing has been changed then.

use std::sync::Arc;

use tollgate_policy::gateway::Event;

use crate::app::App;
use crate::clerk;
use crate::clock::Clock;
use crate::config::Config;
use crate::folding::{FoldError, Folding};
use crate::journal::{Journal, JournalError, Left};
use crate::membership;
use crate::server::StartError;
use crate::store::{Directory, Store, StoreError};

/// Opens the ledger's journal, and says what a process before this one left in flight.
pub(crate) fn open_journal(config: &Config, clock: Clock) -> Result<(Journal, Left), JournalError> {
    let (journal, left) = Journal::open(&config.data_dir, config.ledger.settings(), clock)?;
    if left.interrupted > 0 {
        tracing::warn!(
            target: "tollgate::ledger",
            interrupted = left.interrupted,
            "the process before this one died; what it had in flight is charged what its last \
             marks prove"
        );
    }
    Ok((journal, left))
}

/// Opens the store, twice: for the clerk and for handlers; and counts what was served before.
pub(crate) async fn open_store(
    config: &Config,
) -> Result<(Folding, [Store; 2], Directory), StartError> {
    let location = config.store.location(&config.data_dir);
    let mut folding = Folding::of(&config.data_dir);
    let prices = config.prices.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let mut store = Store::open(location.clone())?;
        let directory = store.directory()?;
        store.set_prices(&prices)?;
        folding.catch_up(&mut store)?;
        Ok::<_, FoldError>((folding, [store, Store::at(location)], directory))
    });
    let opened = match opened.await {
        Ok(opened) => opened?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let overlap = membership::overlap(config, &opened.2);
    if !overlap.is_empty() {
        let names = overlap.into_iter().map(str::to_owned);
        return Err(StartError::Overlap(names.collect()));
    }
    Ok(opened)
}

impl From<FoldError> for StartError {
    fn from(error: FoldError) -> Self {
        match error {
            FoldError::Journal(error) => Self::Ledger(error),
            FoldError::Store(error) => Self::Store(error),
        }
    }
}

/// Has the policy know what was spent before the first request comes.
pub(crate) async fn first_tariff(mut store: Store, app: &Arc<App>) -> Result<Store, StartError> {
    let of = Arc::clone(app);
    let read = tokio::task::spawn_blocking(move || {
        let tariff = clerk::tariff(&mut store, &of)?;
        Ok::<_, StoreError>((store, tariff))
    });
    let (store, tariff) = match read.await {
        Ok(read) => read?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    app.desk.submit(Event::Priced(Box::new(tariff)));
    Ok(store)
}

pub(crate) fn no_thread(source: &std::io::Error) -> StartError {
    StartError::Store(StoreError::Down {
        at: "the store".to_owned(),
        why: format!("the system starts no thread: {source}"),
    })
}
