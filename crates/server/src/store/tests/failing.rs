//! Failure at every single statement of the store, on either side of it, commits included.

use super::*;

promises!(PROMISES:
    whatever_statement_fails_a_fold_counts_once_when_it_is_done_again,
    whatever_statement_fails_a_change_of_a_key_is_made_or_not_and_its_audit_with_it,
    whatever_statement_fails_prices_are_the_old_ones_or_the_new_ones,
);

/// How a statement fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The connection breaks before it is done.
    LostBefore,
    /// It is done, and the connection breaks before anybody hears of it.
    LostAfter,
    /// The database says no, and is there still.
    Refused,
}

/// A database whose n-th statement fails.
#[derive(Debug)]
struct Failing {
    inner: Box<dyn Database>,
    /// Statements that go well before it.
    left: usize,
    how: How,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Well,
    Failed,
    Gone,
}

impl Failing {
    fn pass<T>(
        &mut self,
        statement: impl FnOnce(&mut dyn Database) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let gone = Failure {
            why: "planted".to_owned(),
            lost: true,
        };
        match (self.state, self.left) {
            (State::Gone, _) => Err(gone),
            (State::Failed, _) => statement(&mut *self.inner),
            (State::Well, 0) if self.how == How::Refused => {
                self.state = State::Failed;
                Err(Failure::told("planted"))
            }
            (State::Well, 0) => {
                self.state = State::Gone;
                if self.how == How::LostAfter {
                    statement(&mut *self.inner)?;
                }
                Err(gone)
            }
            (State::Well, _) => {
                self.left -= 1;
                statement(&mut *self.inner)
            }
        }
    }
}

impl Database for Failing {
    fn words(&self) -> database::Words {
        self.inner.words()
    }

    fn has_tables(&mut self) -> Result<bool, Failure> {
        self.inner.has_tables()
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        self.inner.prepare()
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.pass(|database| database.begin())
    }

    fn lock_shape(&mut self) -> Result<(), Failure> {
        self.inner.lock_shape()
    }

    fn batch(&mut self, sql: &str) -> Result<(), Failure> {
        self.pass(|database| database.batch(sql))
    }

    fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, Failure> {
        self.pass(|database| database.execute(sql, values))
    }

    fn query(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Failure> {
        self.pass(|database| database.query(sql, values))
    }
}

/// Does `work` with a failure at each of its statements, one after the other, until it has none
/// left to fail; `check` looks at what came of each.
fn at_each_statement(
    store: &mut Store,
    mut work: impl FnMut(&mut Store, usize) -> bool,
    mut check: impl FnMut(&mut Store, usize, bool),
) {
    let mut tries = 0;
    for how in [How::LostBefore, How::LostAfter, How::Refused] {
        for left in 0.. {
            let mut inner = store.dial().unwrap();
            inner.prepare().unwrap();
            store.connection = Some(Box::new(Failing {
                inner,
                left,
                how,
                state: State::Well,
            }));
            let done = work(store, tries);
            store.connection = None;
            check(store, tries, done);
            tries += 1;
            if done {
                assert!(left > 2, "{how:?}: a transaction has that many statements");
                break;
            }
        }
    }
}

fn whatever_statement_fails_a_fold_counts_once_when_it_is_done_again(store: &mut Store) {
    store.set_prices(&priced(), &[price(0)]).unwrap();
    let journal = |n: usize| format!("j{n}");
    let charges: Vec<_> = (0..5)
        .map(|n| Charge {
            key: (n % 2 == 0).then(|| "k".into()),
            ..charge(n, "t", SPRING + n * HOUR)
        })
        .collect();
    let one = |store: &mut Store| {
        store.fold("alone", &charges, upto(5)).unwrap();
        (total(store), store.spent(&Scope::Tenant("t"), 0).unwrap())
    };
    let (alone, spent) = one(store);
    at_each_statement(
        store,
        |store, n| store.fold(&journal(n), &charges, upto(5)).is_ok(),
        |store, n, _| {
            for _ in 0..2 {
                store.fold(&journal(n), &charges, upto(5)).unwrap();
            }
            let times = u64::try_from(n).unwrap() + 2;
            let sum = total(store);
            assert_eq!(sum.requests, alone.requests * times);
            assert_eq!(sum.output_tokens, alone.output_tokens * times);
            assert_eq!(sum.cost_nano_usd, alone.cost_nano_usd * times);
            let all = store.spent(&Scope::Tenant("t"), 0).unwrap();
            assert_eq!(all, spent * times);
            assert_eq!(store.verify_usage().unwrap(), []);
        },
    );
}

fn whatever_statement_fails_a_change_of_a_key_is_made_or_not_and_its_audit_with_it(
    store: &mut Store,
) {
    store
        .create_tenant(&TenantRow::named("t"), &by("ops"))
        .unwrap();
    at_each_statement(
        store,
        |store, _| store.create_key(&NewKey::of("t"), &by("ops")).is_ok(),
        |store, _, done| {
            let made = store.keys().unwrap().len();
            let audit = store.audit().unwrap();
            let noted = audit.iter().filter(|row| row.action == "key.create");
            assert_eq!(noted.count(), made);
            assert!(!done || made > 0);
        },
    );
}

fn whatever_statement_fails_prices_are_the_old_ones_or_the_new_ones(store: &mut Store) {
    store.set_prices(&priced(), &[price(0)]).unwrap();
    at_each_statement(
        store,
        |store, n| {
            let rows = [price(u64::try_from(n).unwrap() + 1), price(SPRING)];
            store.set_prices(&priced(), &rows).is_ok()
        },
        |store, n, _| {
            let now: Vec<_> = store.prices().unwrap();
            let sinces: Vec<_> = now.iter().map(|row| row.from_us).collect();
            let new = u64::try_from(n).unwrap() + 1;
            assert!(
                sinces == [0] || matches!(sinces[..], [since, SPRING] if since <= new),
                "{sinces:?}"
            );
        },
    );
}

#[test]
fn a_disk_without_room_takes_nothing_by_halves_and_all_of_it_when_there_is_some() {
    let folder = tempfile::tempdir().unwrap();
    let location = Location::File(folder.path().join("tollgate.db"));
    let mut store = Store::open(location).unwrap();
    let charges: Vec<_> = (0..2_000)
        .map(|n| charge(n, &format!("tenant-{n}"), SPRING + n * HOUR))
        .collect();
    let full = "PRAGMA max_page_count = 1";
    store.with(|database| database.query(full, &[])).unwrap();
    let error = store.fold("j", &charges, upto(2_000)).unwrap_err();
    assert!(!error.is_lasting(), "{error}");
    assert!(error.to_string().contains("full"), "{error}");
    assert_eq!(total(&mut store), Amounts::default());
    // The connection is another by now, without the bound.
    let folded = store.fold("j", &charges, upto(2_000)).unwrap();
    assert_eq!(folded.counted, 2_000);
    assert_eq!(store.verify_usage().unwrap(), []);
}
