//! Conversations as a data set: files of records become one cached file of tokens, whose conversations are packed
//! into sequences.

use super::super::cache::{self, cache_error, key, lock, write_whole};
use super::super::download::{CHAT_TEMPLATE, TOKENIZER_CONFIG};
use super::super::files::{self, DataFile};
use super::super::json::JsonRecords;
use super::super::preparation::{PreparationObserver, PreparationStep, TokenizationProgress};
use super::super::tokenizer::{TextTokenizer, named};
use super::super::{DataError, DataSet, Sequences};
use super::windows::{ChatFile, ChatWindows, Conversations};
use super::{ChatEncoder, ChatError, ChatRecord, ChatTemplate, MaskedTokens};
use chrono::{NaiveDate, NaiveDateTime};
use dtrain_recipes::{Data, LossOn, ValidationSource};
use rayon::prelude::*;
use std::io::{BufReader, Write};
use std::path::Path;
use std::sync::Arc;

/// Number of records that one thread tokenizes at a time.
const BATCH: usize = 64;

/// Version of the cached file; another one is another name.
const FORMAT: &str = "chat 1";

/// The settings of a recipe that determine how its conversations become tokens.
pub(in crate::data) struct ChatSettings<'a> {
    pub(in crate::data) tokenizer: &'a str,
    pub(in crate::data) template: Option<&'a str>,
    pub(in crate::data) loss_on: LossOn,
    pub(in crate::data) packing: bool,
}

/// The tokenizer and the template of a data set.
struct Prepared {
    tokenizer: TextTokenizer,
    template: ChatTemplate,
    /// The files that both are read from.
    files: Vec<Arc<DataFile>>,
    /// What the tokens depend on beside the records.
    method: String,
}

/// The day that templates are told which write the date: tokens must not depend on the day on which they are
/// made. It is the day that the template of Llama 3.1 writes where it is told none.
fn day() -> NaiveDateTime {
    let day = NaiveDate::from_ymd_opt(2024, 7, 26).and_then(|day| day.and_hms_opt(0, 0, 0));
    day.expect("this is a day")
}

impl ChatSettings<'_> {
    fn prepared(&self, root: &Path) -> Result<Prepared, DataError> {
        let (tokenizer, file) = named(self.tokenizer, root)?;
        let beside =
            |name: &str| files::beside(self.tokenizer, &file, name, root).map(|file| file.map(Arc::new));
        let config = beside(TOKENIZER_CONFIG)?;
        let template = match self.template {
            Some(name) => Some(Arc::new(files::only(name, root)?)),
            None => beside(CHAT_TEMPLATE)?,
        };
        let content = |file: &Option<Arc<DataFile>>| {
            file.as_ref().map(|file| file.read_up_to(0, file.bytes)).transpose()
        };
        let (json, text) = (content(&config)?, content(&template)?);
        let text = text.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let named = template.as_ref().or(config.as_ref()).map_or(self.tokenizer, |file| &file.name);
        let parsed = ChatTemplate::new(json.as_deref(), text.as_deref(), day())
            .map_err(|error| DataError::content(named, "chat template", error.to_string()))?;
        let method = format!(
            "{FORMAT} {} {:?} {} {}",
            tokenizer.key()?,
            self.loss_on,
            blake3::hash(json.as_deref().unwrap_or_default()),
            blake3::hash(text.as_deref().unwrap_or_default().as_bytes())
        );
        let files = std::iter::once(file).chain(config).chain(template).collect();
        Ok(Prepared { tokenizer, template: parsed, files, method })
    }

    /// Returns the names of the files in the cache that opening the data would use or write.
    pub(in crate::data) fn cached(&self, data: &Data, root: &Path) -> Result<Vec<String>, DataError> {
        let prepared = self.prepared(root)?;
        let mut names = vec![prepared.name(&files::find(&data.train, root)?)?.0];
        if let ValidationSource::Files(patterns) = &data.valid {
            names.push(prepared.name(&files::find(patterns, root)?)?.0);
        }
        Ok(names)
    }

    /// Opens the conversations as a data set of sequences of `model`.
    pub(in crate::data) fn open(
        &self,
        data: &Data,
        root: &Path,
        model: Sequences,
        cache: &Path,
        watch: &PreparationObserver<'_>,
    ) -> Result<DataSet, DataError> {
        let prepared = self.prepared(root)?;
        prepared.tokenizer.fits(model.vocab)?;
        let train_files = files::find(&data.train, root)?;
        let all = prepared.tokens(&train_files, self.loss_on, cache, watch)?;
        let mut recorded = [train_files, prepared.files.clone()].concat();
        let (train, valid) = match &data.valid {
            ValidationSource::Fraction(fraction) => all.split(*fraction)?,
            ValidationSource::Files(patterns) => {
                let files = files::find(patterns, root)?;
                let valid = prepared.tokens(&files, self.loss_on, cache, watch)?;
                recorded.extend(files);
                (Conversations::all(all), Conversations::all(valid))
            }
        };
        let train = ChatWindows::pack(train.used(data.fraction), model, self.packing)?;
        let valid = ChatWindows::pack(valid, model, self.packing)?;
        train.at_least_one("train")?;
        valid.at_least_one("validate")?;
        let warnings = train.warnings("to train on").into_iter().chain(valid.warnings("to validate with"));
        Ok(DataSet {
            warnings: warnings.collect(),
            train: Box::new(train),
            valid: Box::new(valid),
            files: files::recorded(&recorded)?,
            tokenizer: Some(prepared.tokenizer),
            preprocessing: None,
        })
    }

    /// Returns the tokens of record number `index` of the training files, each as text with whether it counts in
    /// the loss; `None` if there are fewer records.
    pub(in crate::data) fn sample(
        &self,
        data: &Data,
        root: &Path,
        index: usize,
    ) -> Result<Option<Vec<(String, bool)>>, DataError> {
        let prepared = self.prepared(root)?;
        let mut skipped = 0;
        for file in files::find(&data.train, root)? {
            let mut records = JsonRecords::of_records(Arc::clone(&file), BufReader::new(file.reader()?));
            while let Some((bytes, place)) = records.next_record()? {
                if skipped == index {
                    let MaskedTokens { ids, counted } =
                        prepared.encode(&prepared.encoder(self.loss_on), &file, &bytes, &place)?;
                    let text = |id: u32| prepared.tokenizer.decode(&[id]);
                    let tokens = ids.into_iter().zip(counted).map(|(id, counts)| Ok((text(id)?, counts)));
                    return tokens.collect::<Result<_, DataError>>().map(Some);
                }
                skipped += 1;
            }
        }
        Ok(None)
    }
}

/// Returns `true` if the first record of a file is a conversation, in any of the forms that are read.
pub fn holds_conversations(path: &Path) -> bool {
    let first = || -> Result<Option<Vec<u8>>, DataError> {
        let file = Arc::new(DataFile::open(path, Path::new(""))?);
        let mut records = JsonRecords::of_records(Arc::clone(&file), BufReader::new(file.reader()?));
        Ok(records.next_record()?.map(|(bytes, _)| bytes))
    };
    let record = first().ok().flatten().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    record.is_some_and(|record| ChatRecord::parse(&record).is_ok())
}

impl Prepared {
    fn encoder(&self, loss_on: LossOn) -> ChatEncoder<'_> {
        let tokenizer = self.tokenizer.subword().expect("a tokenizer of a file has parts of words");
        ChatEncoder::new(&self.template, tokenizer, loss_on)
    }

    /// Returns the name of the cached file with the tokens of `files`, and the key of its lock.
    fn name(&self, files: &[Arc<DataFile>]) -> Result<(String, String), DataError> {
        let tokenizer = self.tokenizer.key()?;
        Ok((format!("{}{tokenizer}-{}.tokens", cache::PREFIX, key(&self.method, files)?), tokenizer))
    }

    /// Returns the tokens of `files`: from the cache, otherwise tokenized now.
    fn tokens(
        &self,
        files: &[Arc<DataFile>],
        loss_on: LossOn,
        folder: &Path,
        watch: &PreparationObserver<'_>,
    ) -> Result<ChatFile, DataError> {
        crate::files::make_folder(folder).map_err(cache_error("making", folder))?;
        let (name, tokenizer) = self.name(files)?;
        let path = folder.join(name);
        let _lock = lock(folder, &tokenizer, watch.progress)?;
        if !path.exists() {
            write_whole(&path, |to| self.write(files, loss_on, to, &path, watch))?;
        }
        ChatFile::open(Arc::new(DataFile::open(&path, folder)?))
    }

    /// Tokenizes the records of `files` on all threads and writes them to `to`.
    fn write(
        &self,
        files: &[Arc<DataFile>],
        loss_on: LossOn,
        to: &mut dyn Write,
        path: &Path,
        watch: &PreparationObserver<'_>,
    ) -> Result<(), DataError> {
        let encoder = self.encoder(loss_on);
        let (mut done, mut index) = (TokenizationProgress::default(), Vec::new());
        for file in files {
            let reader = BufReader::with_capacity(1 << 20, file.reader()?);
            let mut records = JsonRecords::of_records(Arc::clone(file), reader);
            loop {
                let mut batch = Vec::new();
                while batch.len() < BATCH * rayon::current_num_threads() {
                    let Some(record) = records.next_record()? else { break };
                    batch.push(record);
                }
                if batch.is_empty() {
                    break;
                }
                done.bytes += batch.iter().map(|(bytes, _)| bytes.len() as u64).sum::<u64>();
                let encoded: Vec<MaskedTokens> = batch
                    .par_iter()
                    .map(|(bytes, place)| self.encode(&encoder, file, bytes, place))
                    .collect::<Result<_, _>>()?;
                for tokens in encoded {
                    index.push(ChatFile::write(&tokens, to).map_err(cache_error("writing", path))?);
                    done.tokens += tokens.ids.len() as u64;
                    done.documents += 1;
                }
                watch.progress.advance();
                (watch.tell)(PreparationStep::Tokenizing(done));
            }
        }
        ChatFile::finish(&index, to).map_err(cache_error("writing", path))
    }

    /// Returns the tokens of a record; an error names its file and its place.
    fn encode(
        &self,
        encoder: &ChatEncoder<'_>,
        file: &DataFile,
        bytes: &[u8],
        place: &str,
    ) -> Result<MaskedTokens, DataError> {
        let wrong = |detail: String| DataError::content(&file.name, place, detail);
        let record = serde_json::from_slice(bytes)
            .map_err(|error| wrong(format!("expected a JSON object, found other text ({error})")))?;
        let tokens = ChatRecord::parse(&record).and_then(|record| encoder.encode(&record));
        tokens.map_err(|error: ChatError| wrong(error.to_string()))
    }
}
