//! Hosts with listeners, and one that fetches what its rank reads.

use super::*;
use crate::agent::fixtures;
use crate::agent::peers::TrialAttempt;
use crate::certificates::agent_certificates;
use crate::checkpoints::{self, commit};
use crate::control_protocol::AgentIdentity;
use dtrain_protocol::checkpoint::header::{TensorInfo, encode};
use dtrain_protocol::checkpoint::{CHUNK_BYTES, SavedFile, Slice, folder_name, merge};
use dtrain_protocol::{
    AttemptId, Layout, Rank, StepId, StoredSlice, Tensor, TensorKind, TlsIdentity, TrialId,
};
use dtrain_recipes::{Activation, Decoder, Model};
use std::num::NonZeroU32;
use std::sync::Arc;

const SIDE: u64 = 1024;
const BLOCKS: u32 = 8;
const KINDS: [TensorKind; 3] = [TensorKind::Parameter, TensorKind::FirstMoment, TensorKind::SecondMoment];

fn decoder() -> Model {
    Model::Decoder(Decoder {
        layers: BLOCKS,
        hidden: 1024,
        heads: 4,
        kv_heads: 4,
        ffn: 1024,
        vocab: 256,
        context: 16,
        activation: Activation::Gelu,
        tied: true,
        ..Decoder::small_llama()
    })
}

fn stages(pipeline: u32) -> Layout {
    Layout { pipeline: NonZeroU32::new(pipeline).expect("not zero"), ..Layout::SINGLE }
}

/// Returns the assignment of a rank whose stage holds `blocks`.
fn assignment(rank: u32, pipeline: u32, blocks: std::ops::Range<u32>) -> Assignment {
    let mut one = fixtures::assignment(TrialId("01JZX0000000000000000000AB".into()), AttemptId(2), decoder());
    (one.rank, one.arrangement.layout) = (Rank(rank), stages(pipeline));
    one.chunks = std::iter::once(blocks).collect();
    one
}

/// Writes the file of a stage of two blocks: 4 MiB for each tensor.
fn save(folder: &Path, rank: u32) -> SavedFile {
    let shape = vec![SIDE, SIDE];
    let (mut entries, mut tensors, mut data) = (BTreeMap::new(), Vec::new(), Vec::new());
    let name = format!("rank-{rank:05}.safetensors");
    for block in 2 * rank..2 * rank + 2 {
        for kind in KINDS {
            let tensor = format!("blocks.{block}.ffn.up.weight");
            let key = format!("{tensor}{}", kind.suffix());
            let begin = data.len() as u64;
            let seed = u64::from(block) * 3 + key.len() as u64;
            data.extend(
                (0..SIDE * SIDE)
                    .flat_map(|i| (dtrain_protocol::shuffle::splitmix64(seed, i) as u32).to_le_bytes()),
            );
            let data_offsets = (begin, data.len() as u64);
            entries
                .insert(key.clone(), TensorInfo { dtype: "F32".into(), shape: shape.clone(), data_offsets });
            let pieces = vec![StoredSlice::of(&Slice::whole(&shape), &name, key)];
            tensors.push(Tensor { name: tensor, kind, shape: shape.clone(), pieces });
        }
    }
    let bytes = [encode(&entries), data].concat();
    fs::write(folder.join(&name), &bytes).expect("room on disk");
    let chunks = bytes.chunks(CHUNK_BYTES as usize).map(|chunk| blake3::hash(chunk).to_hex().to_string());
    SavedFile { file: FileEntry { name, bytes: bytes.len() as u64, chunks: chunks.collect() }, tensors }
}

/// A host with a listener.
struct Host {
    listener: Arc<PeerListener>,
    trial: TrialFolder,
    _root: tempfile::TempDir,
}

/// Hosts of which the last has nothing, and the first two have the whole checkpoint.
struct Hosts {
    hosts: Vec<Host>,
    name: String,
    text: String,
    manifest: Manifest,
}

fn host(index: u32, identity: &TlsIdentity) -> Host {
    let root = tempfile::tempdir().expect("a folder");
    let trial = TrialFolder::at(root.path());
    trial.create().expect("room on disk");
    let names = TrialAttempt { trial: TrialId("01JZX0000000000000000000AB".into()), attempt: AttemptId(2) };
    let seat =
        AgentIdentity { host: index, bind: "127.0.0.1".into(), identity: identity.clone(), is_shared: false };
    let listener = PeerListener::bind(&seat, names, &trial).expect("a free port").open(drop);
    Host { listener, trial, _root: root }
}

impl Hosts {
    fn new() -> Self {
        let identities = agent_certificates(&TrialId("01JZX0000000000000000000AB".into()), AttemptId(2), 3);
        let identities = identities.expect("keys");
        let hosts: Vec<Host> =
            (0..3).zip(&identities).map(|(index, identity)| host(index, identity)).collect();
        let (step, attempt) = (StepId(6), AttemptId(1));
        let partial = hosts[0].trial.partial_checkpoint(step, attempt);
        fs::create_dir(&partial).expect("a folder");
        let mut saved: Vec<_> = (0..4).map(|rank| save(&partial, rank)).collect();
        fs::write(partial.join("inputs.json"), "{}").expect("room on disk");
        let hash = blake3::hash(b"{}").to_hex().to_string();
        let file = FileEntry { name: "inputs.json".into(), bytes: 2, chunks: vec![hash] };
        saved.push(SavedFile { file, tensors: Vec::new() });
        let (tensors, files) = merge(saved).expect("every element once");
        let manifest = Manifest::new(&assignment(0, 4, 0..2), step, "test", tensors, files);
        let manifest = Manifest { attempt, ..manifest };
        let text = serde_json::to_string(&manifest).expect("keys are strings");
        commit::prepare(&partial, &text).expect("room on disk");
        commit::finish(&hosts[0].trial, step, attempt).expect("room on disk");
        let (one, other) =
            (hosts[0].trial.checkpoint(step, attempt), hosts[1].trial.checkpoint(step, attempt));
        fs::create_dir(&other).expect("a folder");
        for entry in fs::read_dir(&one).expect("a folder").flatten() {
            fs::copy(entry.path(), other.join(entry.file_name())).expect("room on disk");
        }
        Self { hosts, name: folder_name(step, attempt), text, manifest }
    }

    fn peer(&self, host: u32) -> PeerAddress {
        let address = self.hosts[host as usize].listener.address.clone();
        PeerAddress { host, name: format!("node{host}"), address }
    }

    /// Fetches to the last host from `holders`.
    fn fetch(
        &self,
        one: &Assignment,
        holders: &[PeerAddress],
    ) -> Result<(PathBuf, FetchSummary), LaunchError> {
        let holders: Vec<_> =
            self.manifest.files.iter().map(|file| (file.clone(), holders.to_vec())).collect();
        let parts = CheckpointParts {
            trial: &self.hosts[2].trial,
            name: &self.name,
            text: &self.text,
            manifest: &self.manifest,
            holders: &holders,
            assignments: std::slice::from_ref(one),
            listener: &self.hosts[2].listener,
            own: 2,
            loop_counters: &LoopCounters::default(),
        };
        parts.fetch()
    }

    /// Checks that `folder` has all that the rank reads, unchanged.
    fn has_all(&self, folder: &Path, one: &Assignment) {
        let whole = self.hosts[0].trial.checkpoints().join(&self.name);
        for read in self.manifest.reads(one) {
            for piece in &self.manifest.tensors[read.tensor].pieces {
                let [found, written] =
                    [folder, &whole].map(|folder| fs::read(folder.join(&piece.file)).expect("a file"));
                let length = header::length(&written[..8], written.len() as u64).expect("a head") as usize;
                let places = header::decode(&written[8..8 + length], written.len() as u64).expect("a head");
                let place = piece.byte_range(&places).expect("a place");
                let place = place.start as usize..place.end as usize;
                assert!(found[..8 + length] == written[..8 + length], "the head of {}", piece.file);
                assert!(found[place.clone()] == written[place], "{} in {}", piece.key, piece.file);
            }
        }
        assert_eq!(fs::read(folder.join("inputs.json")).expect("a file"), b"{}");
    }
}

#[test]
fn a_host_fetches_what_its_ranks_read_and_hardly_more() {
    let hosts = Hosts::new();
    // Three stages in place of four: blocks 3, 4 and 5 lie in parts of one file and all of another.
    let one = assignment(1, 3, 3..6);
    let from = [hosts.peer(0), hosts.peer(1)];
    let (folder, fetched) = hosts.fetch(&one, &from).expect("they give it");
    hosts.has_all(&folder, &one);
    let read: u64 = hosts.manifest.reads(&one).iter().map(|read| 4 * read.slice.elements()).sum();
    let all: u64 = hosts.manifest.files.iter().map(|file| file.bytes).sum();
    println!("{read} bytes are read of {all}: {fetched}");
    assert!(fetched.bytes >= read && 10 * fetched.bytes <= 12 * read, "{fetched:?}, and {read} are read");
    assert_eq!((read, fetched.hosts), (36 << 20, 2));

    // The folder does not count as a checkpoint.
    let checkpoints = hosts.hosts[2].trial.checkpoints();
    assert_eq!(checkpoints::committed(&checkpoints).expect("a folder"), []);
    assert!(fs::read(folder.join("rank-00003.safetensors")).expect("a file").iter().all(|byte| *byte == 0));

    // Continued: present chunks are not fetched again, missing ones are.
    let (_, again) = hosts.fetch(&one, &from).expect("they give it");
    assert_eq!((again.bytes, again.hosts), (0, 0));
    let file = OpenOptions::new().write(true).open(folder.join("rank-00002.safetensors")).expect("a file");
    file.write_all_at(b"damage", 2 * CHUNK_BYTES + 5).expect("room on disk");
    let (_, again) = hosts.fetch(&one, &from).expect("they give it");
    assert_eq!((again.bytes, again.hosts), (CHUNK_BYTES, 1));
    hosts.has_all(&folder, &one);

    remove_fetched(&hosts.hosts[2].trial, Some(&folder)).expect("a folder");
    assert!(folder.exists());
    remove_fetched(&hosts.hosts[2].trial, None).expect("a folder");
    assert!(!folder.exists());
}

#[test]
fn what_a_host_does_not_give_or_gives_otherwise_comes_from_the_others() {
    let hosts = Hosts::new();
    let one = assignment(1, 3, 3..6);
    let gone = PeerAddress { host: 7, name: "node7".into(), address: "127.0.0.1:1".into() };
    let damaged = hosts.hosts[0].trial.checkpoints().join(&hosts.name).join("rank-00002.safetensors");
    let intact = fs::read(&damaged).expect("a file");
    let flip = |path: &Path| {
        let mut bytes = intact.clone();
        bytes[CHUNK_BYTES as usize + 9] ^= 4;
        fs::write(path, bytes).expect("room on disk");
    };
    flip(&damaged);
    let (folder, fetched) =
        hosts.fetch(&one, &[gone.clone(), hosts.peer(0), hosts.peer(1)]).expect("one gives it");
    fs::write(&damaged, &intact).expect("room on disk");
    hosts.has_all(&folder, &one);
    assert!(10 * fetched.bytes <= 13 * (36 << 20), "what was good was not fetched twice: {fetched:?}");

    remove_fetched(&hosts.hosts[2].trial, None).expect("a folder");
    flip(&damaged);
    flip(&hosts.hosts[1].trial.checkpoints().join(&hosts.name).join("rank-00002.safetensors"));
    let error = hosts.fetch(&one, &[hosts.peer(0), hosts.peer(1)]).expect_err("both give it otherwise");
    let words = error.to_string();
    assert!(matches!(error, LaunchError::Checkpoint(_)), "{words}");
    assert!(words.contains("rank-00002.safetensors at byte 4194304"), "{words}");
    let error = hosts.fetch(&one, std::slice::from_ref(&gone)).expect_err("no host is there");
    assert!(matches!(error, LaunchError::OnHost { .. }), "an outage says nothing of the checkpoint: {error}");
}

#[test]
fn what_a_host_has_whole_is_linked_and_never_written_to() {
    let hosts = Hosts::new();
    let one = assignment(1, 3, 3..6);
    let own = hosts.hosts[2].trial.checkpoints().join(&hosts.name);
    fs::create_dir(&own).expect("a folder");
    let name = "rank-00002.safetensors";
    let written = fs::read(hosts.hosts[0].trial.checkpoints().join(&hosts.name).join(name)).expect("a file");
    fs::write(own.join(name), &written).expect("room on disk");
    let (folder, fetched) = hosts.fetch(&one, &[hosts.peer(0), hosts.peer(1)]).expect("they give it");
    hosts.has_all(&folder, &one);
    assert!(fetched.bytes < 17 << 20, "the rest of one file: {fetched:?}");
    // The checkpoint is removed, and another host's chunk damaged here: the repair must not write to the
    // link.
    let link = folder.join(name);
    fs::rename(own.join(name), own.join("elsewhere")).expect("a file");
    fs::write(&link, &written[..9]).expect("room on disk");
    let (folder, _) = hosts.fetch(&one, &[hosts.peer(0)]).expect("it gives it");
    hosts.has_all(&folder, &one);
    assert_eq!(
        fs::metadata(own.join("elsewhere")).expect("a file").len(),
        9,
        "what else has that name is as it was"
    );
}
