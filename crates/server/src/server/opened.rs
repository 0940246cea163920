//! What a server opens of its data before it takes its first request: the journal, the store, and
//! what both know of what was spent.
//!
//! It decides nothing: what can't be opened is an error, and nothing has been changed then.

use std::path::Path;
use std::sync::Arc;

use tollgate_policy::gateway::Event;

use crate::app::App;
use crate::clock::Clock;
use crate::config::Config;
use crate::journal::{Journal, Left};
use crate::members::membership;
use crate::server::StartError;
use crate::store::clerk;
use crate::store::folding::{self, FoldError, Folding};
use crate::store::{Charge, Directory, Location, PriceRow, Scope, Store, StoreError};

/// Opens the ledger's journal, and says what a process before this one left in flight.
///
/// # Errors
/// Journal or store are not ours to change, and neither was.
pub(crate) fn open_journal(config: &Config, clock: Clock) -> Result<(Journal, Left), StartError> {
    Store::look(&config.store.location(&config.data_dir))?;
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

/// What was opened of a store.
pub(crate) struct Opened {
    pub(crate) folding: Folding,
    /// For the clerk, for counting, and for handlers.
    pub(crate) stores: [Store; 3],
    /// `None` where it can't be reached now.
    pub(crate) directory: Option<Directory>,
}

/// Opens the store, and counts what was served before. A server that is away keeps nobody waiting:
/// who may call is then who is in the configuration, and what is served waits in the journal.
pub(crate) async fn open_store(config: &Config) -> Result<Opened, StartError> {
    let location = config.store.location(&config.data_dir);
    let mut folding = Folding::of(&config.data_dir);
    let prices = config.prices.clone();
    let models = config.models.list().iter();
    let models: Vec<_> = models.map(|model| model.name.clone()).collect();
    let at = location.clone();
    let read = tokio::task::spawn_blocking(move || {
        let mut store = Store::at(at);
        let read = store.directory().map_err(FoldError::from);
        let read = read.and_then(|directory| {
            store.set_prices(&models, &prices)?;
            folding.catch_up(&mut store)?;
            Ok(directory)
        });
        (read, folding, store)
    });
    let (read, folding, store) = match read.await {
        Ok(read) => read,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let directory = match (read, &location) {
        (Ok(directory), _) => Some(directory),
        (Err(FoldError::Store(error @ StoreError::Down { .. })), Location::Server(_)) => {
            tracing::error!(
                %error,
                "serving without the store until it is back: keys in it are not known yet"
            );
            None
        }
        (Err(error), _) => return Err(error.into()),
    };
    let overlap = directory
        .as_ref()
        .map(|all| membership::overlap(config, all));
    let overlap = overlap.unwrap_or_default();
    if !overlap.is_empty() {
        let names = overlap.into_iter().map(str::to_owned);
        return Err(StartError::Overlap(names.collect()));
    }
    Ok(Opened {
        folding,
        stores: [store, Store::at(location.clone()), Store::at(location)],
        directory,
    })
}

impl From<FoldError> for StartError {
    fn from(error: FoldError) -> Self {
        match error {
            FoldError::Journal(error) => Self::Ledger(error),
            FoldError::Store(error) => Self::Store(error),
        }
    }
}

/// Has the policy know what was spent before the first request comes: by the store, and where that
/// is away by what the journal still has.
pub(crate) async fn first_tariff(
    mut store: Store,
    app: &Arc<App>,
    data_dir: &Path,
) -> Result<Store, StartError> {
    let (of, data_dir) = (Arc::clone(app), data_dir.to_owned());
    let read = tokio::task::spawn_blocking(move || {
        let tariff = if of.membership.knows_the_store() {
            clerk::tariff(&of, |scope, since| store.spent(scope, since))?
        } else {
            let (_, charges) = folding::charges(&data_dir)?;
            let (prices, _) = of.membership.money(&of);
            clerk::tariff(&of, |scope, since| {
                Ok::<_, FoldError>(spent(&charges, &prices, scope, since))
            })?
        };
        Ok::<_, FoldError>((store, tariff))
    });
    let (store, tariff) = match read.await {
        Ok(read) => read?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    app.desk.submit(Event::Priced(Box::new(tariff)));
    Ok(store)
}

/// What these requests cost a payer since a moment, in nano-dollars.
fn spent(charges: &[Charge], prices: &[PriceRow], scope: &Scope<'_>, since_us: u64) -> u64 {
    let is_payer = |charge: &&Charge| match scope {
        Scope::Tenant(name) => *charge.tenant == **name,
        Scope::Key(id) => charge.key.as_deref() == Some(*id),
    };
    let own = charges.iter().filter(is_payer);
    let own = own.filter(|charge| charge.ended_us >= since_us);
    let costs = own.map(|charge| charge.cost_at(prices).get());
    costs.fold(0, u64::saturating_add)
}

pub(crate) fn no_thread(source: &std::io::Error) -> StartError {
    StartError::Store(StoreError::Down {
        at: "the store".to_owned(),
        why: format!("the system starts no thread: {source}"),
    })
}
