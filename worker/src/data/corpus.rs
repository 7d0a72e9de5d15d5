//! The documents of a text corpus, piece by piece: a text file, a JSON record or a row of a Parquet file is
//! a document.
//!
//! Files are read, and decompressed, as a stream: a piece at a time is in memory.

use super::DataError;
use super::document::{DocumentPiece, TextFile};
use super::files::DataFile;
use super::json::JsonRecords;
use super::parquet_text::ParquetDocuments;
use dtrain_recipes::Documents;
use std::io::BufReader;
use std::sync::Arc;

/// A reader of corpora that divides files into documents.
#[derive(Clone, Copy, Debug)]
pub(super) struct CorpusReader<'a> {
    /// Rule for the boundaries of documents in a file.
    pub(super) documents: &'a Documents,
}

/// An iterator over the pieces of the documents in a file; it ends after an error.
type DocumentPieces<'a> = Box<dyn Iterator<Item = Result<DocumentPiece, DataError>> + 'a>;

impl<'a> CorpusReader<'a> {
    /// Iterates over the pieces of all documents in `files`, in order; ends after an error.
    pub(super) fn pieces(
        self,
        files: &'a [Arc<DataFile>],
    ) -> impl Iterator<Item = Result<DocumentPiece, DataError>> {
        files.iter().flat_map(move |file| self.pieces_of(file))
    }

    fn pieces_of(self, file: &'a Arc<DataFile>) -> DocumentPieces<'a> {
        self.opened(file).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
    }

    fn opened(self, file: &'a Arc<DataFile>) -> Result<DocumentPieces<'a>, DataError> {
        let reader = || file.reader().map(|reader| BufReader::with_capacity(1 << 20, reader));
        Ok(match self.documents {
            Documents::Files => Box::new(TextFile::new(Arc::clone(file), reader()?)),
            Documents::JsonLines(field) => Box::new(JsonRecords::new(Arc::clone(file), reader()?, field)),
            Documents::Parquet(column) => Box::new(ParquetDocuments::open(file, column)?),
        })
    }
}
