//! What INT8 KV costs in quality, measured on the default model.

#[path = "support/models.rs"]
mod models;

use std::ops::ControlFlow;

use models::{Setting, default_model, engine, load};
use sayfa::backend::cpu::Activations;
use sayfa::kv::layout::KvType;

#[test]
fn isolated() {
    let model = load(&default_model());
    let text: Vec<u32> =
        std::fs::read_to_string("/tmp/ids.txt").unwrap().split_whitespace().map(|x| x.parse().unwrap()).collect();
    let n: usize = std::env::var("N").unwrap().parse().unwrap();
    let text = &text[..n];
    let activations = if std::env::var("PRODUCT").is_ok() { Activations::Int8 } else { Activations::F32 };
    let setting = Setting { batch_logits: 128, activations, context_tokens: 4096, ..Setting::default() };
    let mut a = engine(&model, setting);
    let mut b = engine(&model, Setting { kv_type: KvType::Int8, ..setting });
    let mut c = engine(&model, Setting { kv_type: KvType::F32, ..setting });
    let (ia, ib, ic) = (a.new_sequence(), b.new_sequence(), c.new_sequence());
    let (mut kl, mut top, mut klf) = (0.0, 0, 0.0);
    for chunk in text.chunks(128) {
        let get = |e: &mut sayfa::engine::Engine, id| {
            let mut all = vec![];
            e.score(id, chunk, &mut |_, l: &[f32]| {
                all.push(l.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
            all
        };
        let (la, lb) = (get(&mut a, ia), get(&mut b, ib));
        let lc = if activations == Activations::Int8 { get(&mut c, ic) } else { la.clone() };
        for ((la, lb), lc) in la.iter().zip(&lb).zip(&lc) {
            kl += kld(la, lb);
            klf += kld(la, lc);
            let best = |l: &[f32]| (0..l.len()).max_by(|&a, &b| l[a].total_cmp(&l[b])).unwrap();
            top += usize::from(best(la) == best(lb));
        }
    }
    println!("KL {:.6} floor {:.6} top1 {:.4}", kl / n as f64, klf / n as f64, top as f64 / n as f64);
}

fn kld(p: &[f32], q: &[f32]) -> f64 {
    let lse = |l: &[f32]| {
        let m = l.iter().copied().fold(f32::MIN, f32::max) as f64;
        m + l.iter().map(|&x| (x as f64 - m).exp()).sum::<f64>().ln()
    };
    let (lp, lq) = (lse(p), lse(q));
    p.iter()
        .zip(q)
        .map(|(&a, &b)| {
            let (a, b) = (a as f64 - lp, b as f64 - lq);
            a.exp() * (a - b)
        })
        .sum()
}
