//! Newcomers where all places are taken: who gives one up, when it goes on, and what it costs.

use super::*;

#[test]
fn a_newcomer_finds_a_place_beside_a_tenant_that_has_them_all_and_who_gave_it_goes_on() {
    let mut engine = engine(Config {
        guests: 2,
        ..CONFIG
    });
    let begin = |engine: &mut Engine, id: u64, tenant, output| {
        start_with(engine, id, tenant, tokens(id, 4), output);
    };
    (0..6).for_each(|id| begin(&mut engine, id, 0, 20));
    let ids = |step: &Step| {
        step.work
            .iter()
            .map(|work| work.id.get())
            .collect::<Vec<_>>()
    };
    for _ in 0..3 {
        assert_eq!(ids(&stepped(&mut engine)), [0, 1, 2, 3]);
    }
    begin(&mut engine, 7, 1, 3);
    let step = stepped(&mut engine);
    assert_eq!(
        (ids(&step), trims(&step)),
        (vec![0, 1, 2, 7], 1),
        "in the very next step"
    );
    let gauges = engine.gauges();
    assert_eq!(
        (gauges.running, gauges.waiting, gauges.sequences),
        (4, 3, 5)
    );
    begin(&mut engine, 8, 1, 3);
    assert_eq!(ids(&stepped(&mut engine)), [0, 1, 7, 8]);
    begin(&mut engine, 9, 1, 3);
    assert_eq!(
        ids(&stepped(&mut engine)),
        [0, 1, 7, 8],
        "they have as many places now"
    );
    assert_eq!(
        ids(&stepped(&mut engine)),
        [0, 1, 8, 9],
        "a newcomer goes before those that would give up the place at once"
    );
    (0..2).for_each(|_| drop(stepped(&mut engine)));
    assert_eq!(
        ids(&stepped(&mut engine)),
        [0, 1, 3, 2],
        "and 3, which gave first, and 2 before 4 and 5"
    );
    let samples = |step: &Step| step.work.iter().filter(|work| work.samples).count();
    let mut made = 3 * 4 + 7 * 4;
    while let Some(step) = engine.plan() {
        made += samples(&step);
        answer(&mut engine, &step, |_| false);
    }
    assert_eq!(made, 6 * 20 + 3 * 3, "each token was made once");
    let outputs = effects(&mut engine).into_iter().map(|effect| match effect {
        EngineEffect::Ended { usage, .. } => usage.output.get(),
        EngineEffect::Refused { .. } => 0,
    });
    assert_eq!(outputs.sum::<u64>(), 6 * 20 + 3 * 3);
}

#[test]
fn newcomers_find_places_for_as_long_as_long_answers_go_on_and_those_are_whole() {
    let mut engine = engine(Config {
        guests: 2,
        blocks: 128,
        ..CONFIG
    });
    (0..4).for_each(|id| start_with(&mut engine, id, 0, tokens(id, 40), 400));
    let mut waits = Vec::new();
    for guest in 100..130 {
        // A second goes by, in steps.
        (0..10).for_each(|_| drop(stepped(&mut engine)));
        start_with(&mut engine, guest, 1, tokens(guest, 4), 2);
        let mut wait = 0;
        while !stepped(&mut engine)
            .work
            .iter()
            .any(|work| work.id.get() == guest)
        {
            wait += 1;
        }
        waits.push(wait);
    }
    let longest = waits.iter().max();
    assert!(longest < Some(&20), "steps that each waited: {waits:?}");
    let mut steps = 0;
    while engine.plan().is_some_and(|step| {
        answer(&mut engine, &step, |_| false);
        true
    }) {
        steps += 1;
    }
    assert!(steps < 2_000, "they end");
    let outputs = effects(&mut engine).into_iter().map(|effect| match effect {
        EngineEffect::Ended { usage, .. } => usage.output.get(),
        EngineEffect::Refused { .. } => 0,
    });
    assert_eq!(outputs.sum::<u64>(), 4 * 400 + 30 * 2);
}

/// An engine behind a window as the gateway's: as many requests as there are places, and as many
/// guests. A step is the unit of time.
struct World {
    engine: Engine,
    load: Load,
    now: u64,
    /// Requests that came.
    came: u64,
    /// Newcomers that wait in front of the window.
    line: VecDeque<Start>,
    /// When each request came that is not over, and whether it is a newcomer's.
    open: BTreeMap<RequestId, (u64, bool)>,
    /// How long each newcomer waited until something of it was computed.
    waits: Vec<u64>,
    /// How long each long answer took.
    took: Vec<u64>,
    /// The longest time for which somebody waited for a place back.
    out: u32,
}

/// What comes.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Tenants of which one has a long answer waiting at any time.
    long: u32,
    /// Tokens of their prompts and answers.
    prompt: u64,
    output: u64,
    /// A newcomer comes every so many steps, each of another tenant.
    every: u64,
    /// Tokens of their answers.
    brief: u64,
    /// Whether the prefix cache is on.
    caches: bool,
}

/// Four tenants' worth of places, long answers and a newcomer in about each second of a slow
/// computer.
const EACH_SECOND: Load = Load {
    long: 3,
    prompt: 40,
    output: 600,
    every: 28,
    brief: 8,
    caches: true,
};

impl World {
    const GUESTS: u32 = Config::guests_of(CONFIG.sequences);

    /// Of each newcomer.
    const PROMPT: u64 = 8;

    fn new(load: Load) -> Self {
        let prefixes = if load.caches { 16 } else { 0 };
        let config = Config {
            guests: Self::GUESTS,
            blocks: 256,
            step_tokens: Tokens::new(512),
            chunk: Tokens::new(512),
            context: Tokens::new(1_024),
            cache: CacheConfig {
                prefixes,
                tenant_blocks: KvBlocks::new(128),
            },
            ..CONFIG
        };
        Self {
            engine: engine(config),
            load,
            now: 0,
            came: 0,
            line: VecDeque::new(),
            open: BTreeMap::new(),
            waits: Vec::new(),
            took: Vec::new(),
            out: 0,
        }
    }

    fn request(&mut self, tenant: u64, prompt: u64, output: u64) -> Start {
        self.came += 1;
        Start {
            id: RequestId::new(self.came),
            tenant: TenantId::new(u32::try_from(tenant).unwrap()),
            prompt: tokens(self.came, prompt),
            max_output: Tokens::new(output),
            elder: None,
            served: Service::ZERO,
            haste: Haste::InPassing,
        }
    }

    fn has_room(&self, guests: u32) -> bool {
        let most = usize::try_from(CONFIG.sequences + guests).unwrap();
        self.engine.running.len() + self.engine.waiting.len() < most
    }

    fn comes(&mut self) {
        let load = self.load;
        if self.now.is_multiple_of(load.every) {
            let newcomer = self.request(1_000 + self.now, Self::PROMPT, load.brief);
            self.open.insert(newcomer.id, (self.now, true));
            self.line.push_back(newcomer);
        }
        while self.has_room(Self::GUESTS)
            && let Some(newcomer) = self.line.pop_front()
        {
            self.engine.handle(EngineEvent::Start(newcomer));
        }
        while self.has_room(0) {
            let tenant = self.came % u64::from(load.long);
            let long = self.request(tenant, load.prompt, load.output);
            self.open.insert(long.id, (self.now, false));
            self.engine.handle(EngineEvent::Start(Start {
                // More than any newcomer.
                served: Service::new(1_000),
                haste: Haste::AsTheyCome,
                ..long
            }));
        }
    }

    fn step(&mut self) {
        self.comes();
        let step = self.engine.plan().unwrap();
        for work in step.work.iter().filter(|work| work.start == Tokens::ZERO) {
            let (came, is_new) = self.open[&work.id];
            self.waits.extend(is_new.then(|| self.now - came));
        }
        let gave = self.engine.waiting.iter().filter_map(|one| one.gave);
        self.out = gave.chain([self.out]).max().unwrap();
        answer(&mut self.engine, &step, |_| false);
        for effect in effects(&mut self.engine) {
            let EngineEffect::Ended { id, .. } = effect else {
                panic!("{effect:?}");
            };
            let (came, is_new) = self.open.remove(&id).unwrap();
            self.took.extend((!is_new).then(|| self.now - came));
        }
        self.now += 1;
    }

    fn played(load: Load, steps: u64) -> Self {
        let mut world = Self::new(load);
        (0..steps).for_each(|_| world.step());
        world
    }

    /// The longest that one long answer may wait for its place, and then take in all, whatever
    /// comes.
    fn bounds(&self) -> (u64, u64) {
        let Load {
            prompt,
            output,
            every,
            brief,
            ..
        } = self.load;
        let stay = batch::stay(Tokens::new(prompt + output)).get();
        // A newcomer's own answer is in it too, and the step in which a place comes free.
        let others = u64::from(Self::GUESTS) * (brief + 3);
        // Nothing paced is computed faster than a block in a step.
        let again = (prompt + output).div_ceil(KvBlocks::SLOTS.get()) + 1;
        let out = stay + others + again;
        let times = output / KvBlocks::SLOTS.get() + 1;
        // Before its first place so many pass it, who came by then or come one after the other.
        let first = others + u64::from(batch::PASSES_MAX) * every.max(brief + 3);
        // Its prompt is computed once before all that, and each time that it gives up its place the
        // step in which it does, and that in which it is given one, make nothing.
        (out, first + again + output + times * (out + again + 2))
    }
}

#[test]
fn a_newcomer_each_second_finds_a_place_at_once_however_many_tenants_have_long_answers() {
    for long in 1..=4 {
        for caches in [true, false] {
            let load = Load {
                long,
                caches,
                ..EACH_SECOND
            };
            let world = World::played(load, 6_000);
            let longest = world.waits.iter().max();
            assert!(
                world.waits.len() > 200 && longest <= Some(&2),
                "{load:?}: {longest:?}"
            );
            let slowest = world.took.iter().max();
            assert!(slowest < Some(&1_200), "{load:?}: {slowest:?}");
        }
    }
}

#[test]
fn with_more_newcomers_than_guests_can_be_a_long_answer_takes_little_more_than_twice_its_time() {
    for (caches, most) in [(true, 1_250), (false, 1_400)] {
        for long in 1..=4 {
            let load = Load {
                long,
                caches,
                every: 3,
                ..EACH_SECOND
            };
            let world = World::played(load, 6_000);
            let slowest = world.took.iter().max();
            assert!(
                world.took.len() > 8 && slowest < Some(&most),
                "{load:?}: {slowest:?}"
            );
        }
    }
}

#[test]
fn what_is_computed_again_for_those_who_gave_a_place_stays_in_proportion_to_what_they_made() {
    for (caches, most) in [(true, 3), (false, 8)] {
        let load = Load {
            every: 10,
            caches,
            ..EACH_SECOND
        };
        let mut world = World::new(load);
        let (mut made, mut computed) = (0, 0);
        for _ in 0..6_000 {
            world.comes();
            let step = world.engine.plan().unwrap();
            computed += step.work.iter().map(|work| work.count.get()).sum::<u64>();
            made += step.work.iter().map(|work| work.fresh.get()).sum::<u64>();
            made += u64::try_from(step.work.iter().filter(|work| work.samples).count()).unwrap();
            answer(&mut world.engine, &step, |_| false);
            effects(&mut world.engine);
            world.now += 1;
        }
        assert!(
            computed < made * most,
            "{computed} for {made} tokens, {load:?}"
        );
    }
}

#[test]
fn a_single_sequence_has_no_guests_and_others_have_a_quarter_and_one() {
    let guests = [1, 2, 4, 5, 32].map(Config::guests_of);
    assert_eq!(guests, [0, 2, 2, 3, 9]);
}

fn loads() -> impl Strategy<Value = Load> {
    (
        1_u32..=4,
        1_u64..150,
        1_u64..500,
        1_u64..40,
        1_u64..20,
        any::<bool>(),
    )
        .prop_map(|(long, prompt, output, every, brief, caches)| Load {
            long,
            prompt,
            output,
            every,
            brief,
            caches,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn with_newcomers_for_ever_every_long_answer_goes_on_and_ends_within_its_bound(
        load in loads()
    ) {
        let world = World::played(load, 4_000);
        let (out, all) = world.bounds();
        prop_assert!(u64::from(world.out) <= out, "{} steps without a place, not {out}", world.out);
        let open = world.open.values().filter(|(_, is_new)| !is_new);
        let oldest = open.map(|(came, _)| world.now - came).chain(world.took.iter().copied());
        let oldest = oldest.max().unwrap();
        prop_assert!(oldest <= all, "{oldest} steps for an answer, not {all}");
    }
}
