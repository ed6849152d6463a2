//! Development aid.
use portcullis_sim::{Plan, run, shrink};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let from: u64 = args[1].parse().unwrap();
    let to: u64 = args[2].parse().unwrap();
    if args.len() > 3 {
        let plan = Plan::draw(from);
        let (mut small, report) = shrink(&plan, 300);
        println!("{:#?}\n{}", report.failures, small.command());
        small.readable = true;
        let report = run(&small);
        let lines = report.lines.len();
        for line in report.lines.iter().skip(lines.saturating_sub(args[3].parse().unwrap())) { println!("{line}"); }
        println!("{:#?}", report.failures);
        return;
    }
    let mut events = 0; let mut bad = 0; let mut acc=0; let mut tried=0; let mut refused=0; let mut late=0; let mut grants=0;
    let mut by = std::collections::BTreeMap::new();
    for seed in from..to {
        let r = std::panic::catch_unwind(|| run(&Plan::draw(seed)));
        match r { Ok(r) => { events += r.events; acc+=r.accesses; tried+=r.violations_tried; refused+=r.violations_refused; late+=r.late_and_harmless; grants+=r.grants;
            if !r.ok { bad += 1; let f=&r.failures[0]; *by.entry(f.promise.name()).or_insert(0)+=1; if bad <= 40 { println!("seed {seed}: {}", f.to_string().chars().take(230).collect::<String>()); } } }
            Err(_) => { bad += 1; println!("seed {seed} PANICS"); } }
    }
    println!("{events} events, {bad} bad {by:?}; accesses {acc} grants {grants} tried {tried} refused {refused} late {late}");
}
