//! Reads which layers of a model have a sliding window.

use super::reader::ConfigReader;
use super::{Family, ModelFamily, Windows};
use dtrain_recipes::SlidingWindow;
use serde_json::Value;

impl ConfigReader {
    /// Returns the sliding window of the model, without its base of rotary positions.
    pub(super) fn window(&mut self, parts: &Family, layers: u32) -> Option<SlidingWindow> {
        if parts.windows == Windows::None {
            self.refuse_value("sliding_window", "window in models of this type");
            if self.value("layer_types").is_some_and(|kinds| kinds.to_string().contains("sliding_attention"))
            {
                self.reasons
                    .push("`layer_types` has sliding_attention, which this type of model lacks".into());
            }
            return None;
        }
        let default = match parts.family {
            // What the classes of transformers have where the key is absent; null is no window.
            ModelFamily::Mistral if !self.map.contains_key("sliding_window") => Some(4096),
            ModelFamily::Gemma3 => Some(4096),
            _ => None,
        };
        // Without the switch the size of the window means nothing, and may be 0.
        if matches!(parts.windows, Windows::Upper | Windows::Switch)
            && !self.flag("use_sliding_window", false)
        {
            return None;
        }
        let tokens = match (self.value("sliding_window").is_some(), default) {
            (false, None) => return None,
            (_, default) => self.count("sliding_window", default)?,
        };
        let is_local = self.local_layers(parts, layers)?;
        let places = || is_local.iter().enumerate();
        if places().all(|(_, is_local)| !is_local) {
            return None;
        }
        let window = |every| SlidingWindow { tokens, every, rotary_base: None };
        if is_local.iter().all(|is_local| *is_local) {
            return Some(window(None));
        }
        let first = places().find(|(_, is_local)| !**is_local).map_or(0, |(layer, _)| layer + 1);
        let found = window(u32::try_from(first).ok());
        let is_periodic =
            first >= 2 && (0..).zip(&is_local).all(|(layer, is_local)| found.is_in(layer) == *is_local);
        if !is_periodic {
            self.reasons.push(
                "`layer_types` is not periodic: dtrain has windows in all layers, or in all but every n-th"
                    .into(),
            );
            return None;
        }
        Some(found)
    }

    /// Returns, for each layer, whether it has the sliding window.
    fn local_layers(&mut self, parts: &Family, layers: u32) -> Option<Vec<bool>> {
        let all = |is_local| Some(vec![is_local; layers as usize]);
        match parts.windows {
            Windows::None => return all(false),
            Windows::All => return all(true),
            Windows::Switch => return all(true),
            Windows::Upper | Windows::Local => {}
        }
        if let Some(kinds) = self.value("layer_types").and_then(Value::as_array).cloned() {
            let kinds: Vec<_> = kinds.iter().map(|kind| kind.as_str().unwrap_or("none").to_owned()).collect();
            if let Some(odd) =
                kinds.iter().find(|kind| !["full_attention", "sliding_attention"].contains(&kind.as_str()))
            {
                self.reasons.push(format!(
                    "`layer_types` has {odd}, and dtrain has full_attention and sliding_attention"
                ));
                return None;
            }
            if kinds.len() != layers as usize {
                self.reasons.push(format!("`layer_types` has {} entries for {layers} layers", kinds.len()));
                return None;
            }
            return Some(kinds.iter().map(|kind| kind == "sliding_attention").collect());
        }
        if parts.windows == Windows::Upper {
            let begin = self.number("max_window_layers", 28.0);
            if parts.family == ModelFamily::Qwen2Moe {
                let is_local = |layer: u32| f64::from(layer) < begin && layer.is_multiple_of(2);
                return Some((0..layers).map(is_local).collect());
            }
            return Some((0..layers).map(|layer| f64::from(layer) >= begin).collect());
        }
        let period = self.count("sliding_window_pattern", Some(6))?;
        Some((0..layers).map(|layer| !(layer + 1).is_multiple_of(period)).collect())
    }
}
