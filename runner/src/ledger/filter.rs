//! Filters, sort orders and pages of trials: parsed from the user's text, compiled to SQL.

use super::columns::{self, column};
use super::condition_error::ConditionError;
use super::{KnownNames, TrialStatus};
use rusqlite::types::Value as Sql;
use std::cmp::Ordering;

/// Conditions that a trial must meet to be listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Name of the recipe; `None` for any.
    pub recipe: Option<String>,
    /// Name of the study; `None` for any.
    pub study: Option<String>,
    /// Accepted statuses of trials; empty for any.
    pub status: Vec<TrialStatus>,
    /// Tag that the trials must have; `None` for any.
    pub tag: Option<String>,
    /// Parameters that must equal a word, each with that word: a string, `true` or `false`.
    pub words: Vec<(String, String)>,
    /// Comparisons of figures with numbers, all of which must hold.
    pub conditions: Vec<Condition>,
}

/// Sort order of a list of trials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The trial that was recorded last comes first.
    #[default]
    Newest,
    /// The best value of the recipe's objective comes first.
    Best,
    /// The highest throughput (tokens per second) comes first.
    Fastest,
    /// The smallest value comes first, of a metric such as `valid.loss` (best value of the objective, newest
    /// of others), a parameter or a column.
    Least(String),
}

/// Page of a list of trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pagination {
    /// Number of trials to skip.
    pub skip: u64,
    /// Most trials on the page.
    pub limit: u64,
}

/// Comparison such as `batch >= 256`, `train.seed = 7` or `valid.loss < 3.1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// Compared value: a column of the list (`batch`, `learning_rate`, `best`, `loss`, `step`,
    /// `tokens_per_second`), path of a parameter, or name of a metric: the best value of the objective, the
    /// newest of others.
    pub key: String,
    /// Operator that compares the value of the key with the number.
    pub relation: Relation,
    /// Number that the value is compared with.
    pub value: f64,
}

/// Operator that compares a value with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `<`: the value is less than the number.
    Less,
    /// `<=`: the value is at most the number.
    AtMost,
    /// `=`: the value equals the number.
    Equal,
    /// `>=`: the value is at least the number.
    AtLeast,
    /// `>`: the value is greater than the number.
    More,
}

impl Default for Pagination {
    fn default() -> Self {
        Self { skip: 0, limit: u64::MAX }
    }
}

impl Relation {
    const ALL: [Self; 5] = [Self::AtMost, Self::AtLeast, Self::Less, Self::More, Self::Equal];

    fn sign(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Equal => "=",
            Self::AtLeast => ">=",
            Self::More => ">",
        }
    }
}

impl Filter {
    /// Parses conditions joined by `and`, such as `status=completed and batch>=32 and valid.loss<3.1`.
    ///
    /// `recipe`, `study`, `status` and `tag` take words and `=`, and so does a key of the recipe, such as
    /// `params.optimizer=sgd`; a status may be given more than once. `Err` also for a name that is not among
    /// `names`.
    pub fn parse(text: &str, names: &KnownNames) -> Result<Self, ConditionError> {
        let mut filter = Self::default();
        for part in text.split(" and ").map(str::trim).filter(|part| !part.is_empty()) {
            let word = part.split_once('=').map(|(key, word)| (key.trim().to_lowercase(), word.trim()));
            match word.as_ref().map(|(key, word)| (key.as_str(), *word)) {
                Some(("recipe", word)) => filter.recipe = Some(word.to_owned()),
                Some(("study", word)) => filter.study = Some(word.to_owned()),
                Some(("tag", word)) => filter.tag = Some(word.to_owned()),
                Some(("status", word)) => {
                    filter.status.push(word.parse().map_err(ConditionError::NoStatus)?);
                }
                Some(_) | None => match parse_text_condition(part, names) {
                    Some(word) => filter.words.push(word),
                    None => filter.conditions.push(parse_number_condition(part, names)?),
                },
            }
        }
        Ok(filter)
    }
}

impl Sort {
    /// Parses `newest`, `best`, `fastest`, or a name that conditions compare with a number, smallest value
    /// first.
    pub fn parse(text: &str, names: &KnownNames) -> Result<Self, ConditionError> {
        Ok(match text {
            "newest" | "age" => Self::Newest,
            "best" => Self::Best,
            "fastest" => Self::Fastest,
            other => match names.number(other) {
                Ok(name) if name == "best" => Self::Best,
                Ok(name) if name == "tokens_per_second" => Self::Fastest,
                Ok(name) => Self::Least(name),
                Err(ConditionError::Unknown { near: None, .. } | ConditionError::Word(_)) => {
                    return Err(ConditionError::NoOrder(other.to_owned()));
                }
                Err(error) => return Err(error),
            },
        })
    }
}

impl Sort {
    /// Returns the SQL expression that trials are sorted by, with the values of its parameters. Trials
    /// without a value come last.
    fn key(&self, merged: bool) -> (String, Vec<Sql>) {
        let (text, values) = match self {
            Self::Newest => (if merged { "recorded.at_ms" } else { "NULL" }.to_owned(), Vec::new()),
            Self::Fastest => (columns::SPEED.to_owned(), Vec::new()),
            Self::Best => {
                (format!("CASE trial.goal WHEN 'max' THEN -({0}) ELSE {0} END", columns::BEST), Vec::new())
            }
            Self::Least(key) if matches!(key.as_str(), "batch" | "learning_rate" | "step") => {
                (column(key).expect("it is one").to_owned(), Vec::new())
            }
            Self::Least(key) => (
                format!(
                    "coalesce((SELECT {} FROM summary JOIN key ON key.id = summary.key
                               WHERE summary.trial = trial.id AND key.name = ? ORDER BY rank LIMIT 1),
                              (SELECT number FROM param JOIN key ON key.id = param.key
                               WHERE param.trial = trial.id AND key.name = ?))",
                    columns::FIGURE
                ),
                vec![key.clone().into(), key.clone().into()],
            ),
        };
        (text, values)
    }

    /// Compares two trials by their sort value, creation time and row. For `Newest` only rows count: trials
    /// are recorded in their order, whatever the clock said.
    pub(super) fn order(&self, one: (Option<f64>, u64, i64), other: (Option<f64>, u64, i64)) -> Ordering {
        let is_falling = matches!(self, Self::Newest | Self::Fastest);
        let numbers = match (one.0, other.0) {
            (Some(one), Some(other)) if is_falling => other.total_cmp(&one),
            (Some(one), Some(other)) => one.total_cmp(&other),
            (one, other) => one.is_none().cmp(&other.is_none()),
        };
        let rows = || match self {
            Self::Newest => other.2.cmp(&one.2),
            _ => (one.1, one.2).cmp(&(other.1, other.2)),
        };
        numbers.then_with(rows)
    }
}

/// Parses a comparison of a recipe's key with a word.
fn parse_text_condition(text: &str, names: &KnownNames) -> Option<(String, String)> {
    let (key, word) = text.split_once('=')?;
    let (key, word) = (key.trim(), word.trim().trim_matches('"'));
    let is_word = !text.contains(['<', '>']) && !word.is_empty() && word.parse::<f64>().is_err();
    (is_word && names.has_words(key)).then(|| (key.to_owned(), word.to_owned()))
}

/// Parses a comparison with a number. An unknown name is reported before an invalid number.
fn parse_number_condition(text: &str, names: &KnownNames) -> Result<Condition, ConditionError> {
    let key = text.split(['<', '>', '=']).next().unwrap_or_default().trim();
    let known = if key.is_empty() { Ok(String::new()) } else { names.number(key) };
    let condition: Condition = match text.parse() {
        Err(error) if known.is_ok() || !text.contains(['<', '>', '=']) => return Err(error),
        parsed => {
            let key = known?;
            Condition { key, ..parsed? }
        }
    };
    Ok(condition)
}

impl std::str::FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, ConditionError> {
        let wrong = || ConditionError::NoCondition(text.to_owned());
        let (key, rest) = text.split_at(text.find(['<', '>', '=']).ok_or_else(wrong)?);
        let (value, relation) = Relation::ALL
            .into_iter()
            .find_map(|relation| Some((rest.strip_prefix(relation.sign())?, relation)))
            .ok_or_else(wrong)?;
        let value = value.trim().parse().map_err(|_| wrong())?;
        let key = key.trim().to_owned();
        if key.is_empty() { Err(wrong()) } else { Ok(Self { key, relation, value }) }
    }
}

/// SQL of the sort key for a history with imported trials: those by the clock of their machine; those of this
/// machine by row, so that a clock that was set back does not reorder them.
const RECORDED: &str = "
    JOIN (SELECT trial.id AS id,
                 CASE WHEN imported_trial.trial IS NULL
                      THEN max(CASE WHEN imported_trial.trial IS NULL THEN trial.created_ms END) OVER (ORDER BY trial.id)
                      ELSE trial.created_ms END AS at_ms
          FROM trial LEFT JOIN imported_trial ON imported_trial.trial = trial.id) AS recorded ON recorded.id = trial.id";

/// Returns the SQL query for a list of trials with every condition but the status, which depends on living
/// processes; `part` is an additional condition, such as ` AND trial.id > 7`. `merged` says that there are
/// imported trials.
pub(super) fn query(filter: &Filter, sort: &Sort, part: &str, merged: bool) -> (String, Vec<Sql>) {
    let merged = merged && *sort == Sort::Newest;
    let (key, mut values) = sort.key(merged);
    let mut text = format!(
        "SELECT {}, {key} AS sort_key, trial.id AS row_number FROM {}{}\n WHERE 1{part}",
        columns::columns(),
        columns::TABLES,
        if merged { RECORDED } else { "" }
    );
    for (column, wanted) in [("recipe", &filter.recipe), ("study", &filter.study)] {
        if let Some(wanted) = wanted {
            text += &format!(" AND trial.{column} = ?");
            values.push(wanted.clone().into());
        }
    }
    if let Some(tag) = &filter.tag {
        text += " AND EXISTS (SELECT 1 FROM tag WHERE tag.trial = trial.id AND tag.name = ?)";
        values.push(tag.clone().into());
    }
    for (key, word) in &filter.words {
        text += " AND EXISTS (SELECT 1 FROM param JOIN key ON key.id = param.key
                          WHERE param.trial = trial.id AND key.name = ? AND param.value IN (?, ?))";
        // Values are stored as JSON.
        let json = serde_json::Value::from(word.as_str()).to_string();
        values.extend([key.clone().into(), word.clone().into(), json.into()]);
    }
    for Condition { key, relation, value } in &filter.conditions {
        let sign = relation.sign();
        if let Some(column) = column(key) {
            text += &format!(" AND {column} {sign} ?");
            values.push((*value).into());
            continue;
        }
        text += &format!(
            " AND (EXISTS (SELECT 1 FROM param JOIN key ON key.id = param.key
                           WHERE param.trial = trial.id AND key.name = ? AND param.number {sign} ?)
                OR EXISTS (SELECT 1 FROM summary JOIN key ON key.id = summary.key
                           WHERE summary.trial = trial.id AND key.name = ? AND {figure} {sign} ?
                           AND rank = (SELECT min(rank) FROM summary AS other
                                       WHERE other.trial = trial.id AND other.key = key.id)))",
            figure = columns::FIGURE
        );
        values.extend([key.clone().into(), (*value).into(), key.clone().into(), (*value).into()]);
    }
    text += match sort {
        Sort::Newest => {
            if merged {
                " ORDER BY sort_key DESC, trial.id DESC"
            } else {
                " ORDER BY trial.id DESC"
            }
        }
        Sort::Fastest => " ORDER BY sort_key IS NULL, sort_key DESC, trial.created_ms, trial.id",
        Sort::Best | Sort::Least(_) => " ORDER BY sort_key ASC NULLS LAST, trial.created_ms, trial.id",
    };
    (text, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_type_is_read_or_refused_with_an_example() {
        let parse = |text| Filter::parse(text, &KnownNames::default());
        let filter = parse("status=done and STATUS = out-of-memory and batch>=32 and recipe=gpt");
        let filter = filter.expect("conditions");
        assert_eq!(filter.status, [TrialStatus::Completed, TrialStatus::OutOfMemory]);
        assert_eq!(filter.recipe.as_deref(), Some("gpt"));
        let batch = Condition { key: "batch".into(), relation: Relation::AtLeast, value: 32.0 };
        assert_eq!(filter.conditions, [batch]);
        assert_eq!(parse(""), Ok(Filter::default()));
        let words = parse("model.kind = decoder and train.schedule=\"cosine\"").expect("words").words;
        let expected = [("model.kind", "decoder"), ("train.schedule", "cosine")];
        assert_eq!(words, expected.map(|(key, word)| (key.to_owned(), word.to_owned())));
        for wrong in ["batch", "batch>many", ">3", "batch=>3", "loss=low", "train.seed=few"] {
            let message = parse(wrong).expect_err(wrong).to_string();
            assert!(message.contains(wrong) && message.contains("batch >= 256"), "{message}");
        }
        assert!(parse("status=fine").expect_err("unknown").to_string().contains("expected one of"));
    }
}
