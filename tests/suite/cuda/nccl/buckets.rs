//! Buckets of gradients among the other calls of the driver: what their all-reduces wait for, and who uses their memory.

use super::super::{Device, words};
use super::{Call, STEPS, calls, compile, parameters, training};
use dtrain_tests::TestEnv;
use std::ops::Range;

/// Buckets of 25 MiB in each of three layers, and two micro-batches in a step of each rank.
const SEVERAL_BUCKETS: [&str; 5] =
    ["layout.data=2", "model.layers=3", "model.hidden=768", "model.heads=12", "train.batch=16"];
/// Copies to the device in a step: the tokens and the targets of each micro-batch.
const INPUTS: usize = 2 * 2;

impl Call {
    fn is_launch(&self) -> bool {
        self.is("cuLaunchKernel")
    }

    /// Whether the host does not go on before the device has.
    fn is_wait(&self) -> bool {
        ["cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"].contains(&self.call.as_str())
    }

    /// Whether a kernel or a copy gets an address in `memory`.
    fn uses(&self, memory: &Range<u64>) -> bool {
        self.pointers.iter().chain([&self.from, &self.to]).any(|pointer| memory.contains(pointer))
    }
}

/// Every collective takes 30 ms here, so that backward is queued to its end while the first bucket travels.
#[test]
fn a_bucket_waits_for_the_kernels_that_write_it_and_for_no_others() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    let house = TestEnv::default();
    let (mut command, record) = training(&device, &house, &SEVERAL_BUCKETS);
    command.env("STAND_IN_LOG", &record).env("STAND_IN_NCCL_TAKES", "30");
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", words(&output));
    let mut ranks = calls(&record);
    ranks.retain(|log| log.iter().any(|call| call.is("ncclAllReduce")));
    assert_eq!(ranks.len(), 2, "two ranks sum gradients");
    for log in &ranks {
        let sums: Vec<_> =
            places(log, |call| call.is("ncclAllReduce")).map(|at| Bucket::at(log, at)).collect();
        let buckets = sums.len() / STEPS;
        assert!(buckets >= 3 && sums.len() % STEPS == 0, "{} sums in {STEPS} steps", sums.len());
        for (step, sums) in sums.chunks(buckets).enumerate() {
            let values: usize = sums.iter().map(|bucket| log[bucket.sum].count).sum();
            assert_eq!(values, parameters(768, 3), "every gradient is in one bucket");
            sums.iter().for_each(|bucket| bucket.check(log, step));
            check_overlap(log, sums, step);
            check_waits(log, sums, step);
        }
    }
}

/// Places of calls in the log.
fn places(log: &[Call], wanted: impl Fn(&Call) -> bool) -> impl DoubleEndedIterator<Item = usize> {
    log.iter().enumerate().filter(move |(_, call)| wanted(call)).map(|(at, _)| at)
}

/// The stream on which the rank computes, and the thread that queues kernels there.
fn computes(log: &[Call]) -> (u64, u64) {
    let first = log.iter().find(|call| call.is_launch()).expect("a training launches kernels");
    (first.stream, first.thread)
}

/// An all-reduce, by places in the log.
struct Bucket {
    /// The call of NCCL.
    sum: usize,
    /// Where the stream of computation was told to record the event that is waited for.
    event: usize,
    /// Where the end of the all-reduce was seen.
    end: usize,
    memory: Range<u64>,
}

impl Bucket {
    /// Of the call at `sum`.
    fn at(log: &[Call], sum: usize) -> Self {
        let call = &log[sum];
        let is_of_thread = |at: &usize| log[*at].thread == call.thread;
        let wait = places(&log[..sum], |call| call.is("cuEventSynchronize")).rfind(is_of_thread);
        let event = recorded(log, wait.expect("values are waited for"), computes(log).0);
        let mut looks = places(log, |call| call.is("cuEventQuery")).filter(is_of_thread);
        let end = looks.find(|at| *at > sum).expect("the end is waited for");
        let memory = call.from..call.from + 4 * call.count as u64;
        Self { sum, event, end, memory }
    }

    /// The kernel right before the event writes the bucket. No call uses or frees its memory from then until
    /// the all-reduce ends.
    fn check(&self, log: &[Call], step: usize) {
        let (stream, _) = computes(log);
        let is_kernel = |call: &Call| call.is_launch() && call.stream == stream;
        let last = places(&log[..self.event], is_kernel).next_back().expect("a kernel wrote it");
        let words = format!("step {step}, {} values", log[self.sum].count);
        assert!(
            log[last].uses(&self.memory),
            "{words}: waits for kernels up to {}, which does not write them",
            log[last].kernel
        );
        for call in log[self.event..self.end].iter().filter(|call| !call.is("ncclAllReduce")) {
            assert!(!call.uses(&self.memory), "{words}: used before they are summed: {call:?}");
            assert!(!frees(log, call, &self.memory), "{words}: freed before they are summed: {call:?}");
        }
    }
}

/// Whether a call frees the allocation in which `memory` lies.
fn frees(log: &[Call], call: &Call, memory: &Range<u64>) -> bool {
    let is_it = |made: &&Call| made.is("cuMemAlloc") && made.pointers == call.pointers;
    let page = Some(call).filter(|call| call.is("cuMemFree")).and_then(|_| log.iter().find(is_it));
    page.is_some_and(|page| page.pointers[0] < memory.end && memory.start < page.pointers[0] + page.bytes)
}

/// Where stream `computes` was told to record the event that the host waits for at `wait`: itself, or by way of a stream that waits for
/// it.
fn recorded(log: &[Call], wait: usize, computes: u64) -> usize {
    let is_record = |call: &Call| call.is("cuEventRecord") && call.event == log[wait].event;
    let record = places(&log[..wait], is_record).next_back().expect("what is waited for was recorded");
    if log[record].stream == computes {
        return record;
    }
    let is_wait = |call: &Call| call.is("cuStreamWaitEvent") && call.stream == log[record].stream;
    let wait = places(&log[..record], is_wait).next_back().expect("a stream that waits for nothing");
    recorded(log, wait, computes)
}

/// The backward of a layer is queued between the first bucket and the second.
fn check_overlap(log: &[Call], sums: &[Bucket], step: usize) {
    let between = &log[sums[0].event..sums[1].event];
    let others = between.iter().filter(|call| call.is_launch() && !call.uses(&sums[1].memory)).count();
    assert!(others >= 20, "step {step}: {others} kernels between two buckets");
}

/// From the inputs of a step to its last bucket the host waits for nothing and reads nothing, but for the threads that talk to NCCL and
/// to the driver.
fn check_waits(log: &[Call], sums: &[Bucket], step: usize) {
    let (_, driver) = computes(log);
    let talks = log[sums[0].sum].thread;
    let is_read =
        |call: &Call| call.is("download") || call.is_wait() && call.thread != talks && call.thread != driver;
    let (first, last) = (sums[0].event, sums[sums.len() - 1].event);
    let read = log[first..last].iter().find(|call| is_read(call));
    assert_eq!(read, None, "step {step}: between two buckets");
    let before = places(&log[..first], is_read).next_back().unwrap_or(0);
    let inputs = places(&log[before..first], |call| call.is("upload")).count();
    // The first steps also copy what describes the shapes of kernels.
    assert!(step < 2 || inputs == INPUTS, "step {step}: {inputs} inputs since {:?}", log[before]);
}

/// The first bucket of the first step fails, and backward goes on: no later bucket gets its memory, on which the GPU may still work.
#[test]
fn memory_of_a_failed_collective_is_never_used_again() {
    let Some(device) = Device::new(80) else { return };
    compile(&device);
    let house = TestEnv::default();
    let (mut command, record) = training(&device, &house, &SEVERAL_BUCKETS);
    command.env("STAND_IN_LOG", &record).env("STAND_IN_NCCL_FAIL", "ncclAllReduce:1:3");
    let output = command.output().expect("the program starts");
    assert!(!output.status.success(), "no step was made: {}", words(&output));
    let mut failed = 0;
    for log in calls(&record) {
        let Some(sum) = places(&log, |call| call.is("ncclAllReduce")).next() else { continue };
        let memory = log[sum].from..log[sum].from + 4 * log[sum].count as u64;
        let later = log[sum + 1..].iter().filter(|call| call.is_launch()).count();
        failed += usize::from(later > 20);
        let user = log[sum + 1..].iter().find(|call| !call.is("cuMemFree") && call.uses(&memory));
        assert_eq!(user, None, "{later} kernels after it");
    }
    assert!(failed > 0, "backward went on after the first bucket");
}
