//! What is to be served, worked out of a configuration: engines here are loaded, engines elsewhere
//! planned, and the policy told of both.

use tollgate_engine::fake::Faults;
use tollgate_policy::gateway;
use tollgate_policy::ids::ModelId;
use tollgate_policy::tenant::TenantTable;
use tollgate_policy::units::Tokens;
use tollgate_policy::usage::Weights;
use tollgate_policy::window;

use super::{ModelFacts, StartError};
use crate::clock::Clock;
use crate::config::{
    Address, Config, EngineConfig, Fairness, ModelConfig, RemoteConfig, ReplicaConfig,
};
use crate::replicas::roster::{Maker, Member};
use crate::replicas::{Blueprint, Plan};
use crate::upstream::{Names, RemoteModel, io};

/// Loads each model that is computed here, and finds out how the others are reached.
pub(super) fn load(
    models: &[ModelConfig],
    faults: &Faults,
    salt_key: [u8; 32],
    maker: &Maker,
) -> Result<Vec<Plan>, StartError> {
    let mut first = 0;
    let load = |config: &ModelConfig| {
        let own = first;
        first += u32::try_from(config.replicas.len()).unwrap_or(u32::MAX);
        if let EngineConfig::Remote(remote) = &config.engine {
            let member = plan_remote(config, remote, (own, salt_key), maker);
            return member.map(Plan::Remote);
        }
        let loaded = Blueprint::load(config, faults).map_err(|source| StartError::Model {
            model: config.name.clone(),
            source,
        })?;
        let built = loaded.map(|blueprint| Plan::Built(Box::new(blueprint)));
        built.ok_or_else(|| StartError::Nothing {
            model: config.name.clone(),
        })
    };
    models.iter().map(load).collect()
}

fn plan_remote(
    config: &ModelConfig,
    remote: &RemoteConfig,
    (first, salt_key): (u32, [u8; 32]),
    maker: &Maker,
) -> Result<Member, StartError> {
    look_for_trust(config, remote)?;
    let names = Names {
        here: config.name.clone(),
        there: remote.model.clone().unwrap_or_else(|| config.name.clone()),
    };
    let routing = config.routing.clone();
    let model = RemoteModel::new(remote.clone(), names, config.context, routing, salt_key);
    Member::new(config, model, maker, first).map_err(|source| StartError::Port {
        model: config.name.clone(),
        source,
    })
}

/// Whether there is anybody to trust, where one of a model's engines is reached by TLS.
fn look_for_trust(config: &ModelConfig, remote: &RemoteConfig) -> Result<(), StartError> {
    let mut urls = config
        .replicas
        .iter()
        .filter_map(|replica| replica.url.as_ref());
    if !urls.any(Address::is_tls) {
        return Ok(());
    }
    let trusted = io::trust(remote.ca.as_deref(), remote.speaks);
    trusted.map(|_| ()).map_err(|source| StartError::Trust {
        model: config.name.clone(),
        source,
    })
}

/// What the policy has to know of all that.
pub(super) fn policy_config(config: &Config, plans: &[Plan], clock: &Clock) -> gateway::Config {
    let models = config.models.list().iter().zip(plans);
    let replicas = (0..).zip(config.models.list()).flat_map(|(id, model)| {
        let replica = move |replica: &ReplicaConfig| gateway::ReplicaConfig {
            model: ModelId::new(id),
            only: replica.only,
        };
        model.replicas.iter().map(replica)
    });
    let tenants = &config.tenants;
    gateway::Config {
        tenants: TenantTable::new(tenants.list.clone(), tenants.template.clone()),
        replicas: replicas.collect(),
        models: models
            .map(|(model, plan)| gateway::Model {
                context: plan.context(),
                queue_max: model.queue.max_requests,
                max_wait: model.queue.max_wait,
                max_stream: model.max_stream,
                kv_per_token: plan.kv_per_token(),
                target: model.target,
                window: window::Bounds {
                    paced: model.schedule.paced,
                    guests: plan.guests(),
                    ..model.window
                },
                routing: model.routing.policy,
                loading: model.loading,
            })
            .collect(),
        fairness: config.fairness.policy,
        weights: weights(&config.fairness),
        seed: clock.unix_secs(),
    }
}

/// What a token of service counts.
pub(crate) fn weights(fairness: &Fairness) -> Weights {
    Weights {
        input: u64::from(fairness.input_weight),
        output: u64::from(fairness.output_weight),
        cached_percent: u64::from(fairness.cached_weight),
    }
}

/// What people want to know of it.
pub(super) fn facts(models: &[ModelConfig], plans: &[Plan]) -> Vec<ModelFacts> {
    let fact = |(config, plan): (&ModelConfig, &Plan)| {
        let (description, pool) = match plan {
            Plan::Built(blueprint) => {
                let (tokens, bytes) = blueprint.pool();
                (
                    blueprint.model().name().to_owned(),
                    Some((tokens.get(), bytes.get())),
                )
            }
            Plan::Remote(Member { model, .. }) => {
                let kind = model.config.kind.label();
                (format!("{} on {kind}", model.name), None)
            }
        };
        ModelFacts {
            name: config.name.clone(),
            description,
            context: match plan {
                Plan::Built(blueprint) => Some(blueprint.context().get()),
                Plan::Remote(member) => member.model.context.map(Tokens::get),
            },
            replicas: config.replicas.len(),
            kv_tokens: pool.map(|(tokens, _)| tokens),
            kv_bytes: pool.map(|(_, bytes)| bytes),
            sequences: config.max_sequences,
        }
    };
    models.iter().zip(plans).map(fact).collect()
}
