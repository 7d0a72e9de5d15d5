//! Scatter plot of a plan's Pareto front over time, memory and cost.

use super::bars::axis;
use super::svg::{Anchor, AxisScale, Svg, escaped};
use super::{Dot, ParetoChart, WIDTH, bytes};
use crate::render::number::seconds;
use dtrain_planner::text::amount;
use std::fmt::Write as _;

/// Ratio of the longest to the shortest step time from which on the scale is logarithmic.
const WIDE: f64 = 4.0;

/// Edges of the plot's frame: left, right, top, bottom.
const FRAME: (f64, f64, f64, f64) = (64.0, WIDTH - 24.0, 36.0, 300.0);

/// Number of shades that show the number of devices; the last shade stands for the most.
const SHADES: usize = 6;

/// Draws step time against memory, shaded by number of devices; labeled candidates have numbers.
pub(super) fn pareto_chart(front: &ParetoChart) -> String {
    let (left, right, top, bottom) = FRAME;
    let mut svg = Svg::new(WIDTH, 350.0, "time, memory and money of the Pareto front");
    let all = || front.dots.iter().chain([&front.choice]);
    let least = all().map(|dot| dot.step_seconds).fold(f64::INFINITY, f64::min);
    let most = all().map(|dot| dot.step_seconds).fold(0.0, f64::max);
    let across = if most > WIDE * least {
        AxisScale::of_ratios((least / 1.1, most * 1.1), (left, right))
    } else {
        let margin = 0.05 * (most - least).max(0.1 * most);
        AxisScale::even(((least - margin).max(0.0), most + margin), (left, right))
    };
    let fullest = all().map(|dot| dot.memory_fraction).fold(0.0, f64::max);
    let up = AxisScale::even((0.0, (5.0 * fullest).ceil() / 5.0), (bottom, top));
    for share in up.marks(5) {
        let y = up.at(share);
        svg.line((left, y), (right, y), "grid");
        svg.text((left - 8.0, y), Anchor::End, "small", &format!("{:.0} %", 100.0 * share));
    }
    axis(&mut svg, across, bottom + 14.0, seconds);
    svg.text(((left + right) / 2.0, bottom + 42.0), Anchor::Middle, "small", "time of a step");
    svg.text((4.0, 10.0), Anchor::Start, "small", "peak memory of the heaviest rank");
    let mut shades: Vec<u32> = all().map(|dot| dot.devices).collect();
    shades.sort_unstable();
    shades.dedup();
    for dot in &front.dots {
        let place = (across.at(dot.step_seconds), up.at(dot.memory_fraction));
        let class = format!("dot shade-{}", shade(&shades, dot.devices));
        svg.dot(place, if dot.number.is_some() { 7.0 } else { 4.0 }, &class, Some(&dot_title(dot, front)));
    }
    let place = (across.at(front.choice.step_seconds), up.at(front.choice.memory_fraction));
    svg.dot(place, 11.0, "choice", Some(&dot_title(&front.choice, front)));
    for dot in front.dots.iter().filter(|dot| dot.number.is_some()) {
        let (x, y) = (across.at(dot.step_seconds), up.at(dot.memory_fraction));
        let number = dot.number.map_or_else(String::new, |number| number.to_string());
        svg.text((x, y - 14.0), Anchor::Middle, "small", &number);
    }
    svg.finished() + &legend(&shades, front) + &table(front)
}

/// Returns the shade of the number `devices` among all numbers that occur.
fn shade(all: &[u32], devices: u32) -> usize {
    let place = all.iter().position(|known| *known == devices).unwrap_or(0);
    if all.len() < 2 { SHADES - 1 } else { place * (SHADES - 1) / (all.len() - 1) }
}

/// Describes a candidate in words, as the tooltip of its dot.
fn dot_title(dot: &Dot, front: &ParetoChart) -> String {
    let device = &front.device;
    let (step, memory) = (seconds(dot.step_seconds), bytes(dot.memory_bytes));
    let full = 100.0 * dot.memory_fraction;
    let devices = dot.devices;
    let paid = cost_text(dot, front);
    format!("{}\n{step} a step, {memory} ({full:.0} %), {devices} × {device}, {paid}", dot.words)
}

fn cost_text(dot: &Dot, front: &ParetoChart) -> String {
    let device = &front.device;
    let hours = match dot.device_hours {
        Some(hours) => format!("{} {device} hours", amount(hours)),
        None => format!("{} {device} seconds a step", amount(dot.step_seconds * f64::from(dot.devices))),
    };
    dot.money.map_or(hours.clone(), |money| format!("{hours}, {}", amount(money)))
}

fn legend(shades: &[u32], front: &ParetoChart) -> String {
    let mut text = "<ul class=\"legend\">\n".to_owned();
    for devices in shades {
        let shade = shade(shades, *devices);
        _ = writeln!(
            text,
            "<li><i class=\"swatch round shade-{shade}\"></i>{devices} × {}</li>",
            escaped(&front.device)
        );
    }
    text + "<li><i class=\"swatch ring\"></i>the choice</li>\n</ul>\n"
}

/// Formats the table of the chosen and the labeled candidates.
fn table(front: &ParetoChart) -> String {
    let mut text = "<table>\n<thead><tr><th></th><th>step</th><th>memory</th><th>devices</th>".to_owned();
    text += "<th>paid for</th><th>configuration</th></tr></thead>\n<tbody>\n";
    let named = front.dots.iter().filter(|dot| dot.number.is_some());
    for dot in std::iter::once(&front.choice).chain(named) {
        let name = dot.number.map_or_else(|| "choice".to_owned(), |number| number.to_string());
        let cells = [
            name,
            seconds(dot.step_seconds),
            bytes(dot.memory_bytes),
            dot.devices.to_string(),
            cost_text(dot, front),
            dot.words.clone(),
        ];
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text + "</tbody>\n</table>\n"
}
