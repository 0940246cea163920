//! `tollgate keys` and `tollgate tenants`: who may call, beside those in the configuration.

use std::num::{NonZeroU32, NonZeroU64};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tollgate_bench::args::value;
use tollgate_server::budget::{BudgetText, Period};
use tollgate_server::store::{
    DirectoryError, KeyRow, ModelLimits, NewKey, Scopes, StoredLimits, TenantRow, moment,
};

use crate::place::{Place, PlaceArgs, actor, refuse, store_failed};
use crate::table::Table;
use crate::terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum KeysVerb {
    /// Make a key for a tenant of the store. It is shown once; only its SHA-256 is kept.
    Create(CreateKey),
    /// List keys, without their secrets.
    List {
        /// Of one tenant alone.
        #[arg(long, value_name = "NAME", value_parser = value::name)]
        tenant: Option<String>,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Make a key that is good for the same as another, and let that one expire.
    Rotate {
        /// The key's id, as `list` shows it.
        id: String,
        /// How long the old key stays good, as 30m, 24h or 7d; not at all unless given.
        #[arg(long, value_name = "SPAN", value_parser = span, default_value = "0s")]
        overlap: u64,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Let a key be good until a time only.
    Expire {
        /// The key's id.
        id: String,
        /// In which time, as 30m, 24h or 7d; or at which, as 2026-07-01.
        #[arg(value_name = "WHEN")]
        when: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Revoke a key: gateways that run refuse it within a second.
    Revoke {
        /// The key's id.
        id: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

#[derive(Args, Debug)]
pub(crate) struct CreateKey {
    /// Whose it is.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    tenant: String,
    /// What people call it.
    #[arg(long, value_name = "TEXT", default_value = "")]
    label: String,
    /// The models it may name; all of its tenant's unless given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// What it may ask for, out of chat, completions and embeddings; all unless given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    endpoints: Option<Vec<String>>,
    /// It may look at models and usage, and have nothing made.
    #[arg(long)]
    read_only: bool,
    /// When it stops being good: in a time, as 30d, or at one, as 2026-07-01.
    #[arg(long, value_name = "WHEN")]
    expires: Option<String>,
    /// What may be spent with it, as 10/day or 2.50/month/Europe/Berlin, in dollars.
    #[arg(long, value_name = "BUDGET", value_parser = budget)]
    budget: Option<BudgetText>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TenantsVerb {
    /// Add a tenant to the store.
    Create(TenantArgs),
    /// Give a tenant of the store other limits; what is not given is as for a new one.
    Set(TenantArgs),
    /// List the tenants of the store.
    List {
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Remove a tenant from the store and revoke its keys; its usage stays.
    Remove {
        /// Its name.
        name: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TenantArgs {
    /// Its name.
    name: String,
    /// Its promise: reserved, standard or best_effort.
    #[arg(long, default_value = "standard")]
    class: String,
    /// Its share against others, 1 to 1000.
    #[arg(long, default_value = "1", value_parser = value::within::<u32, 1, 1_000>)]
    weight: u32,
    /// The models it may name; all unless given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// Requests per minute.
    #[arg(long, value_parser = value::from_one::<NonZeroU64>)]
    rpm: Option<NonZeroU64>,
    /// Requests that may come at once.
    #[arg(long, requires = "rpm", value_parser = value::from_one::<NonZeroU64>)]
    burst: Option<NonZeroU64>,
    /// Tokens per minute.
    #[arg(long, value_parser = value::from_one::<NonZeroU64>)]
    tpm: Option<NonZeroU64>,
    /// KV memory over time that its requests in flight may hold, in GiB-seconds, as 40 or 0.5.
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    kv_gib_seconds: Option<serde_json::Number>,
    /// Requests at once.
    #[arg(long, value_parser = value::from_one::<NonZeroU32>)]
    concurrency: Option<NonZeroU32>,
    /// Prompt and output tokens of one request.
    #[arg(long, value_parser = value::from_one::<NonZeroU64>)]
    max_context: Option<NonZeroU64>,
    /// Output tokens of one request.
    #[arg(long, value_parser = value::from_one::<NonZeroU64>)]
    max_output: Option<NonZeroU64>,
    /// What it may use of one model, beside the above, as llama:rpm=60,tpm=10000. Once for each.
    #[arg(long, value_name = "MODEL:LIMITS", value_parser = model_limits)]
    model_limits: Vec<ModelLimits>,
    /// What it may spend, as 100/day or 2000/month/Europe/Berlin, in dollars.
    #[arg(long, value_name = "BUDGET", value_parser = budget)]
    budget: Option<BudgetText>,
    #[command(flatten)]
    place: PlaceArgs,
}

pub(crate) fn keys(verb: KeysVerb) -> ExitCode {
    finish(match verb {
        KeysVerb::Create(args) => create_key(args),
        KeysVerb::List { tenant, place } => list_keys(tenant.as_deref(), &place),
        KeysVerb::Rotate { id, overlap, place } => place.open().and_then(|mut place| {
            let by = actor();
            let until = by.at_us.saturating_add(overlap);
            let fresh = place.store.rotate_key(&id, until, &by).map_err(told)?;
            show_once(&fresh.id, &fresh.secret);
            Ok(())
        }),
        KeysVerb::Expire { id, when, place } => place.open().and_then(|mut place| {
            let by = actor();
            let at = time(&when, by.at_us).map_err(|why| refuse(&why))?;
            place.store.expire_key(&id, at, &by).map_err(told)
        }),
        KeysVerb::Revoke { id, place } => place
            .open()
            .and_then(|mut place| place.store.revoke_key(&id, &actor()).map_err(told)),
    })
}

pub(crate) fn tenants(verb: TenantsVerb) -> ExitCode {
    finish(match verb {
        TenantsVerb::Create(args) => create_tenant(&args),
        TenantsVerb::Set(args) => args.place.open().and_then(|mut place| {
            place
                .store
                .change_tenant(&args.row(), &actor())
                .map_err(told)
        }),
        TenantsVerb::List { place } => list_tenants(&place),
        TenantsVerb::Remove { name, place } => place
            .open()
            .and_then(|mut place| place.store.remove_tenant(&name, &actor()).map_err(told)),
    })
}

fn finish(done: Result<(), ExitCode>) -> ExitCode {
    done.err().unwrap_or(ExitCode::SUCCESS)
}

fn create_tenant(args: &TenantArgs) -> Result<(), ExitCode> {
    let row = args.row();
    // Before a store is made: who asked wrongly finds everything as it was.
    row.check().map_err(|why| refuse(&why))?;
    let mut place = args.place.open_or_make()?;
    not_configured(&place, &row.name)?;
    place.store.create_tenant(&row, &actor()).map_err(told)
}

fn not_configured(place: &Place, name: &str) -> Result<(), ExitCode> {
    if place.is_configured(name) {
        return Err(refuse(&format!(
            "the configuration has a tenant {name}; use another name, or take it out there"
        )));
    }
    Ok(())
}

fn told(error: DirectoryError) -> ExitCode {
    match error {
        DirectoryError::Store(error) => store_failed(&error),
        DirectoryError::NoTenant(_)
        | DirectoryError::TenantExists(_)
        | DirectoryError::NoKey(_)
        | DirectoryError::Bad(_) => refuse(&error.to_string()),
    }
}

fn create_key(args: CreateKey) -> Result<(), ExitCode> {
    let mut place = args.place.open()?;
    let by = actor();
    if place.is_configured(&args.tenant) {
        return Err(refuse(&format!(
            "the tenant {0} is in the configuration, and so are its keys; add one there, or make \
             {0} a tenant of the store",
            args.tenant
        )));
    }
    let expires = args.expires.as_deref().map(|when| time(when, by.at_us));
    let key = NewKey {
        tenant: args.tenant,
        label: args.label,
        scopes: Scopes {
            models: args.models,
            endpoints: args.endpoints,
            read_only: args.read_only,
        },
        expires_us: expires.transpose().map_err(|why| refuse(&why))?,
        budget: args.budget,
    };
    let fresh = place.store.create_key(&key, &by).map_err(told)?;
    show_once(&fresh.id, &fresh.secret);
    Ok(())
}

/// The key alone on stdout, so that a script can take it.
fn show_once(id: &str, secret: &str) {
    terminal::complain(&format!("key {id}; what follows is shown this once:"));
    terminal::answer(secret);
}

fn list_keys(tenant: Option<&str>, place: &PlaceArgs) -> Result<(), ExitCode> {
    let mut place = place.open()?;
    let now = actor().at_us;
    let keys = place.store.keys().map_err(|error| store_failed(&error))?;
    if let Some(tenant) = tenant
        && !keys.iter().any(|key| key.tenant == tenant)
    {
        place.sees(tenant)?;
    }
    let mut table = Table::new(&["id", "tenant", "label", "state", "scopes", "budget"]);
    let wanted = |key: &&KeyRow| tenant.is_none_or(|tenant| key.tenant == tenant);
    for key in keys.iter().filter(wanted) {
        let state = match (key.revoked_us, key.expires_us) {
            (Some(_), _) => "revoked".to_owned(),
            (None, Some(at)) if at <= now => "expired".to_owned(),
            (None, Some(at)) => format!("good for {} h", (at - now).div_ceil(3_600_000_000)),
            (None, None) => "good".to_owned(),
        };
        let budget = key.budget.as_ref().map_or_else(String::new, shown_budget);
        let (id, tenant, label) = (key.id.clone(), key.tenant.clone(), key.label.clone());
        table.row(vec![id, tenant, label, state, scopes(&key.scopes), budget]);
    }
    terminal::answer(&table.text());
    Ok(())
}

fn scopes(scopes: &Scopes) -> String {
    let list = |name: &str, names: &Option<Vec<String>>| {
        names
            .as_ref()
            .map(|names| format!("{name}: {}", names.join(" ")))
    };
    let parts = [
        list("models", &scopes.models),
        list("endpoints", &scopes.endpoints),
        scopes.read_only.then(|| "read-only".to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn list_tenants(place: &PlaceArgs) -> Result<(), ExitCode> {
    let mut place = place.open()?;
    let tenants = place
        .store
        .tenants()
        .map_err(|error| store_failed(&error))?;
    let mut table = Table::new(&[
        "name",
        "class",
        "weight",
        "rpm",
        "tpm",
        "models",
        "limits of",
        "budget",
    ]);
    for row in tenants {
        let limit = |limit: Option<NonZeroU64>| limit.map_or(String::new(), |n| n.to_string());
        table.row(vec![
            row.name,
            row.class,
            row.weight.to_string(),
            limit(row.limits.rpm),
            limit(row.limits.tpm),
            row.models
                .map_or_else(|| "all".to_owned(), |models| models.join(" ")),
            row.model_limits
                .iter()
                .map(|own| own.model.as_str())
                .collect::<Vec<_>>()
                .join(" "),
            row.budget.as_ref().map_or_else(String::new, shown_budget),
        ]);
    }
    terminal::answer(&table.text());
    Ok(())
}

fn shown_budget(budget: &BudgetText) -> String {
    let per = match budget.per {
        Period::Day => "day",
        Period::Month => "month",
    };
    format!("{} USD a {per}, {}", budget.usd, budget.zone)
}

impl TenantArgs {
    fn row(&self) -> TenantRow {
        TenantRow {
            name: self.name.clone(),
            class: self.class.clone(),
            weight: self.weight,
            models: self.models.clone(),
            limits: StoredLimits {
                rpm: self.rpm,
                burst: self.burst,
                tpm: self.tpm,
                kv_gib_seconds: self.kv_gib_seconds.clone(),
                concurrency: self.concurrency,
                max_context: self.max_context,
                max_output: self.max_output,
            },
            model_limits: self.model_limits.clone(),
            budget: self.budget.clone(),
        }
    }
}

/// Reads limits of a model as `llama:rpm=60,tpm=10000`: the names are those of the configuration.
fn model_limits(text: &str) -> Result<ModelLimits, String> {
    let want = || format!("{text} are no limits of a model; use llama:rpm=60,tpm=10000");
    let (model, pairs) = text.rsplit_once(':').ok_or_else(want)?;
    let mut limits = serde_json::Map::new();
    for pair in pairs.split(',') {
        let (name, amount) = pair.split_once('=').ok_or_else(want)?;
        let amount: serde_json::Number = amount.parse().map_err(|_| want())?;
        limits.insert(name.trim().to_owned(), amount.into());
    }
    let limits: StoredLimits = serde_json::from_value(limits.into()).map_err(|_| {
        format!(
            "{text}: use rpm, burst, tpm, kv_gib_seconds, concurrency, max_context and max_output, \
             once each, with a number above 0"
        )
    })?;
    limits.read()?;
    Ok(ModelLimits {
        model: model.to_owned(),
        limits,
    })
}

/// Reads a number with or without a fraction.
fn amount(text: &str) -> Result<serde_json::Number, String> {
    text.parse()
        .map_err(|_| "use a number like 40 or 0.5".to_owned())
}

/// Reads a budget as `10/day` or `2.50/month/Europe/Berlin`.
fn budget(text: &str) -> Result<BudgetText, String> {
    let want = || format!("{text} is no budget; use one like 10/day or 2.50/month/Europe/Berlin");
    let mut parts = text.splitn(3, '/');
    let (usd, per) = (parts.next().unwrap_or_default(), parts.next());
    let per = match per {
        Some("day") => Period::Day,
        Some("month") => Period::Month,
        Some(_) | None => return Err(want()),
    };
    let budget = BudgetText {
        usd: usd.to_owned(),
        per,
        zone: parts.next().unwrap_or("UTC").to_owned(),
    };
    budget.read().map(|_| budget)
}

/// Reads a span as `0s`, `30m`, `24h` or `7d`, in microseconds.
fn span(text: &str) -> Result<u64, String> {
    let want = || format!("{text} is no span of time; use one like 30m, 24h or 7d");
    let (count, unit) = text.split_at(text.len().saturating_sub(1));
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(want()),
    };
    let count: u64 = count.parse().map_err(|_| want())?;
    count.checked_mul(seconds * 1_000_000).ok_or_else(want)
}

/// Reads a time: a span from now, or a date.
fn time(text: &str, now_us: u64) -> Result<u64, String> {
    match span(text) {
        Ok(span) => Ok(now_us.saturating_add(span)),
        Err(_) => moment(text).map_err(|why| format!("{why}, or a span like 24h or 7d")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_money_a_period_and_a_zone() {
        let read = budget("2.50/month/Europe/Berlin").unwrap();
        assert_eq!((&*read.usd, &*read.zone), ("2.50", "Europe/Berlin"));
        assert_eq!(budget("10/day").unwrap().zone, "UTC");
        for text in ["", "10", "10/week", "-1/day", "1/day/Nowhere/Land"] {
            assert!(budget(text).is_err(), "{text}");
        }
    }

    #[test]
    fn limits_of_a_model_are_its_name_and_amounts_by_name() {
        let read = model_limits("hub/llama:8b:rpm=60,kv_gib_seconds=0.5").unwrap();
        assert_eq!(read.model, "hub/llama:8b");
        assert_eq!(read.limits.rpm, NonZeroU64::new(60));
        assert!(read.limits.read().unwrap().kv.is_some());
        for text in [
            "",
            "m",
            "m:",
            "m:rpm",
            "m:rpm=0",
            "m:rpm=-1",
            "m:rmp=5",
            "m:burst=5",
        ] {
            assert!(model_limits(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_is_a_span_from_now_or_a_date() {
        assert_eq!(time("2h", 5).unwrap(), 7_200_000_005);
        assert_eq!(time("1970-01-02", 5).unwrap(), 86_400_000_000);
        for text in ["", "soon", "-1d", "1.5h", "99999999999999999d"] {
            assert!(time(text, 5).is_err(), "{text}");
        }
    }
}
