//! Which trials, in which order, which part of them: from what the user types to SQL.

use super::{Status, list};
use rusqlite::types::Value as Sql;

/// Which trials.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Of this recipe.
    pub recipe: Option<String>,
    /// Of this study.
    pub study: Option<String>,
    /// With one of these; empty for any.
    pub status: Vec<Status>,
    /// With this tag.
    pub tag: Option<String>,
    /// All of these hold.
    pub conditions: Vec<Condition>,
}

/// In which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The newest first.
    #[default]
    Newest,
    /// The best by its recipe's objective first.
    Best,
    /// The fastest (tokens per second) first.
    Fastest,
    /// The smallest value of a figure, such as `valid.loss`, first.
    Least(String),
}

/// Which part of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Trials passed over.
    pub skip: u64,
    /// At most this many.
    pub limit: u64,
}

/// A comparison such as `batch >= 256`, `train.seed = 7` or `valid.loss < 3.1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// A column of the list (`batch`, `learning_rate`, `best`, `loss`, `step`, `tokens_per_second`), a path of a
    /// parameter, or the name of a figure (of which the smallest value counts).
    pub key: String,
    /// How it is compared.
    pub relation: Relation,
    /// With what.
    pub value: f64,
}

/// How two numbers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `=`
    Equal,
    /// `>=`
    AtLeast,
    /// `>`
    More,
}

/// A text says nothing about trials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It is no comparison.
    #[error("`{0}` is not a condition; expected one such as `batch >= 256` or `status = completed`")]
    NoCondition(String),
    /// The status is unknown.
    #[error("{0}")]
    NoStatus(String),
}

impl Default for Page {
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
    /// Reads conditions joined by `and`, such as `status=completed and batch>=32 and valid.loss<3.1`.
    ///
    /// `recipe`, `study`, `status` and `tag` take words and `=`; a status may be said more than once.
    pub fn parse(text: &str) -> Result<Self, ConditionError> {
        let mut filter = Self::default();
        for part in text.split(" and ").map(str::trim).filter(|part| !part.is_empty()) {
            let word = part.split_once('=').map(|(key, word)| (key.trim(), word.trim().to_owned()));
            match word {
                Some(("recipe", word)) => filter.recipe = Some(word),
                Some(("study", word)) => filter.study = Some(word),
                Some(("tag", word)) => filter.tag = Some(word),
                Some(("status", word)) => {
                    filter.status.push(word.parse().map_err(ConditionError::NoStatus)?);
                }
                Some(_) | None => filter.conditions.push(part.parse()?),
            }
        }
        Ok(filter)
    }
}

impl Sort {
    /// `newest`, `best`, `fastest`, or the name of a figure, the smallest value first.
    pub fn parse(text: &str) -> Self {
        match text {
            "newest" | "age" => Self::Newest,
            "best" => Self::Best,
            "fastest" | "tokens_per_second" => Self::Fastest,
            figure => Self::Least(figure.to_owned()),
        }
    }
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

/// The columns of the list that conditions can name.
fn column(key: &str) -> Option<&'static str> {
    Some(match key {
        "batch" => "trial.batch",
        "learning_rate" => "trial.learning_rate",
        "best" => list::BEST,
        "loss" => "loss.last",
        "step" => "loss.last_step",
        "tokens_per_second" => list::SPEED,
        _ => return None,
    })
}

/// The query for everything but the status, which only life can tell.
pub(super) fn query(filter: &Filter, sort: &Sort) -> (String, Vec<Sql>) {
    let mut text = format!("SELECT {} FROM {}\n WHERE 1", list::columns(), list::TABLES);
    let mut values: Vec<Sql> = Vec::new();
    for (column, wanted) in [("recipe", &filter.recipe), ("search", &filter.study)] {
        if let Some(wanted) = wanted {
            text += &format!(" AND trial.{column} = ?");
            values.push(wanted.clone().into());
        }
    }
    if let Some(tag) = &filter.tag {
        text += " AND EXISTS (SELECT 1 FROM tag WHERE tag.trial = trial.id AND tag.name = ?)";
        values.push(tag.clone().into());
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
                           WHERE summary.trial = trial.id AND summary.rank = 0 AND key.name = ? AND summary.min {sign} ?))"
        );
        values.extend([key.clone().into(), (*value).into(), key.clone().into(), (*value).into()]);
    }
    text += match sort {
        Sort::Newest => " ORDER BY trial.created_ms DESC, trial.id DESC",
        Sort::Best => {
            " ORDER BY best IS NULL, CASE trial.objective WHEN 'valid.accuracy' THEN -best ELSE best END, trial.id"
        }
        Sort::Fastest => " ORDER BY tokens_per_second IS NULL, tokens_per_second DESC, trial.id",
        Sort::Least(key) => {
            values.push(key.clone().into());
            " ORDER BY (SELECT min FROM summary JOIN key ON key.id = summary.key
                        WHERE summary.trial = trial.id AND summary.rank = 0 AND key.name = ?) ASC NULLS LAST, trial.id"
        }
    };
    (text, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_type_is_read_or_refused_with_an_example() {
        let filter =
            Filter::parse("status=completed and status = out-of-memory and batch>=32 and recipe=gpt");
        let filter = filter.expect("conditions");
        assert_eq!(filter.status, [Status::Completed, Status::OutOfMemory]);
        assert_eq!(filter.recipe.as_deref(), Some("gpt"));
        let batch = Condition { key: "batch".into(), relation: Relation::AtLeast, value: 32.0 };
        assert_eq!(filter.conditions, [batch]);
        assert_eq!(Filter::parse(""), Ok(Filter::default()));
        for wrong in ["batch", "batch>many", ">3", "batch=>3"] {
            let message = Filter::parse(wrong).expect_err(wrong).to_string();
            assert!(message.contains(wrong) && message.contains("batch >= 256"), "{message}");
        }
        assert!(Filter::parse("status=fine").expect_err("unknown").to_string().contains("expected one of"));
    }
}
