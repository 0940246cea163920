//! Tenants, keys, and who changed them.

use super::*;

promises!(PROMISES:
    a_key_is_good_for_what_it_was_made_for_and_only_its_hash_is_kept,
    a_key_of_a_tenant_that_is_not_there_is_refused,
    a_rotated_key_is_good_until_its_time_and_its_heir_for_the_same,
    a_revoked_key_is_gone_from_the_directory_and_can_not_be_revoked_twice,
    a_removed_tenant_takes_its_keys_along_and_may_come_back,
    a_tenant_that_makes_no_sense_is_refused_with_a_reason,
    every_change_is_in_the_audit_without_a_secret,
);

fn tenant(name: &str) -> TenantRow {
    TenantRow {
        limits: StoredLimits {
            rpm: std::num::NonZeroU64::new(60),
            ..StoredLimits::default()
        },
        model_limits: vec![ModelLimits {
            model: "m".to_owned(),
            limits: StoredLimits {
                tpm: std::num::NonZeroU64::new(9),
                ..StoredLimits::default()
            },
        }],
        ..TenantRow::named(name)
    }
}

fn a_key_is_good_for_what_it_was_made_for_and_only_its_hash_is_kept(store: &mut Store) {
    store.create_tenant(&tenant("t"), &by("ops")).unwrap();
    let key = NewKey {
        label: "ci".to_owned(),
        scopes: Scopes {
            models: Some(vec!["m".to_owned()]),
            endpoints: Some(vec!["chat".to_owned()]),
            read_only: true,
        },
        expires_us: Some(SPRING + HOUR),
        ..NewKey::of("t")
    };
    let fresh = store.create_key(&key, &by("ops")).unwrap();
    assert!(fresh.secret.len() > 50 && fresh.secret.contains(&fresh.id));
    let directory = store.directory().unwrap();
    assert_eq!(directory.tenants, [tenant("t")]);
    let kept = &directory.keys[0];
    assert_eq!(kept.hash, KeyHash::of(fresh.secret.as_bytes()));
    assert_eq!(
        (&kept.scopes, kept.expires_us),
        (&key.scopes, key.expires_us)
    );
    let shown = format!("{kept:?}{fresh:?}{}", serde_json::to_string(kept).unwrap());
    let secret = fresh.secret.rsplit('-').next().unwrap();
    assert!(!shown.contains(secret), "{shown}");
}

fn a_key_of_a_tenant_that_is_not_there_is_refused(store: &mut Store) {
    let refused = store.create_key(&NewKey::of("t"), &by("ops")).unwrap_err();
    assert_eq!(refused, DirectoryError::NoTenant("t".to_owned()));
    assert_eq!(store.keys().unwrap(), []);
    store.create_tenant(&tenant("t"), &by("ops")).unwrap();
    let endpoint = NewKey {
        scopes: Scopes {
            endpoints: Some(vec!["images".to_owned()]),
            ..Scopes::default()
        },
        ..NewKey::of("t")
    };
    let refused = store
        .create_key(&endpoint, &by("ops"))
        .unwrap_err()
        .to_string();
    assert!(refused.contains("no endpoint images"), "{refused}");
    let late = NewKey {
        expires_us: Some(SPRING),
        ..NewKey::of("t")
    };
    assert!(store.create_key(&late, &by("ops")).is_err());
}

fn a_rotated_key_is_good_until_its_time_and_its_heir_for_the_same(store: &mut Store) {
    store.create_tenant(&tenant("t"), &by("ops")).unwrap();
    let key = NewKey {
        label: "ci".to_owned(),
        ..NewKey::of("t")
    };
    let old = store.create_key(&key, &by("ops")).unwrap();
    let new = store
        .rotate_key(&old.id, SPRING + HOUR, &by("ops"))
        .unwrap();
    assert_ne!(old.secret, new.secret);
    let keys = store.directory().unwrap().keys;
    let of = |id: &str| keys.iter().find(|key| key.id == id).unwrap();
    assert_eq!(of(&old.id).expires_us, Some(SPRING + HOUR));
    assert_eq!((of(&new.id).expires_us, &*of(&new.id).label), (None, "ci"));
    let unknown = store.rotate_key("nothing", SPRING, &by("ops")).unwrap_err();
    assert_eq!(unknown, DirectoryError::NoKey("nothing".to_owned()));
}

fn a_revoked_key_is_gone_from_the_directory_and_can_not_be_revoked_twice(store: &mut Store) {
    store.create_tenant(&tenant("t"), &by("ops")).unwrap();
    let fresh = store.create_key(&NewKey::of("t"), &by("ops")).unwrap();
    let before = store.generation().unwrap();
    store.revoke_key(&fresh.id, &by("ops")).unwrap();
    assert!(store.generation().unwrap() > before);
    assert_eq!(store.directory().unwrap().keys, []);
    assert_eq!(store.keys().unwrap()[0].revoked_us, Some(SPRING));
    let again = store.revoke_key(&fresh.id, &by("ops")).unwrap_err();
    assert_eq!(again, DirectoryError::NoKey(fresh.id.clone()));
    assert!(
        store
            .expire_key(&fresh.id, SPRING + HOUR, &by("ops"))
            .is_err()
    );
}

fn a_removed_tenant_takes_its_keys_along_and_may_come_back(store: &mut Store) {
    store.create_tenant(&tenant("t"), &by("ops")).unwrap();
    let twice = store.create_tenant(&tenant("t"), &by("ops")).unwrap_err();
    assert_eq!(twice, DirectoryError::TenantExists("t".to_owned()));
    store.create_key(&NewKey::of("t"), &by("ops")).unwrap();
    let wider = TenantRow {
        weight: 7,
        ..tenant("t")
    };
    store.change_tenant(&wider, &by("ops")).unwrap();
    assert_eq!(store.tenants().unwrap()[0].weight, 7);
    store.remove_tenant("t", &by("ops")).unwrap();
    let left = store.directory().unwrap();
    assert_eq!((left.tenants.len(), left.keys.len()), (0, 0));
    assert!(store.change_tenant(&wider, &by("ops")).is_err());
    store.create_tenant(&tenant("t"), &by("ops")).unwrap();
    assert_eq!(
        store.directory().unwrap().keys.len(),
        0,
        "its old keys stay revoked"
    );
}

fn a_tenant_that_makes_no_sense_is_refused_with_a_reason(store: &mut Store) {
    let budget = |usd: &str, zone: &str| {
        Some(BudgetText {
            usd: usd.to_owned(),
            per: crate::members::budget::Period::Day,
            zone: zone.to_owned(),
        })
    };
    let cases = [
        (TenantRow::named(""), "1 to 64 characters"),
        (TenantRow::named("other"), "a meaning of its own"),
        (
            TenantRow {
                weight: 0,
                ..tenant("t")
            },
            "weight is 0",
        ),
        (
            TenantRow {
                class: "gold".to_owned(),
                ..tenant("t")
            },
            "class is gold",
        ),
        (
            TenantRow {
                model_limits: [tenant("t").model_limits, tenant("t").model_limits].concat(),
                ..tenant("t")
            },
            "twice",
        ),
        (
            TenantRow {
                budget: budget("-1", "UTC"),
                ..tenant("t")
            },
            "usd is -1",
        ),
        (
            TenantRow {
                budget: budget("1", "Mars/Dome"),
                ..tenant("t")
            },
            "no time zone",
        ),
    ];
    for (row, why) in cases {
        let refused = store
            .create_tenant(&row, &by("ops"))
            .unwrap_err()
            .to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(store.tenants().unwrap(), []);
    assert_eq!(store.audit().unwrap(), []);
}

fn every_change_is_in_the_audit_without_a_secret(store: &mut Store) {
    store.create_tenant(&tenant("t"), &by("ops")).unwrap();
    let fresh = store.create_key(&NewKey::of("t"), &by("ops")).unwrap();
    let heir = store.rotate_key(&fresh.id, SPRING, &by("ops")).unwrap();
    store.revoke_key(&heir.id, &by("lena")).unwrap();
    store.remove_tenant("t", &by("ops")).unwrap();
    let audit = store.audit().unwrap();
    let mut actions: Vec<_> = audit.iter().map(|row| row.action.as_str()).collect();
    actions.sort_unstable();
    let expected = [
        "key.create",
        "key.revoke",
        "key.rotate",
        "tenant.create",
        "tenant.remove",
    ];
    assert_eq!(actions, expected);
    assert!(
        audit
            .iter()
            .any(|row| row.actor == "lena" && row.subject == heir.id)
    );
    let shown = format!("{audit:?}");
    for secret in [&fresh.secret, &heir.secret] {
        assert!(!shown.contains(secret.rsplit('-').next().unwrap()));
    }
}

use crate::config::KeyHash;
use crate::members::budget::BudgetText;
