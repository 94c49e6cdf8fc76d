// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storelog is a durable log of records and snapshots in a folder. It knows nothing of what is in them: a store that
// runs alone logs its commands in it, a member of a replicated store its entries and what it has voted.
//
// # Use
//
// [Open] locks the folder and replays it: the newest snapshot, then the records after it. From then on one goroutine calls
// [Log.Write] with all records that have gathered while the previous call ran. When Write returns, they are on the disk. This
// is group commit without a timer: the log has no goroutine and no queue. Everything else may be called meanwhile.
//
//	log, err := storelog.Open(dir, storelog.Options{}, storelog.Replay{Snapshot: load, Record: apply})
//	for {
//		batch := gather(ctx)           // at least one record
//		last, err := log.Write(batch)  // one write, one fdatasync
//		answer(batch, last, err)
//		if log.WantsReserve() { go log.Prepare() } // and joined by its owner
//		if log.ShouldSnapshot() { ... log.Snapshot(last, save), then log.Compact(last) ... }
//	}
//
// # What a caller can rely on
//
//   - A batch is there as a whole or not at all. Records that Write has acknowledged are never dropped: a damaged one is a
//     [CorruptError], which names file, offset and record, and the folder does not open.
//   - cohort.Exhausted: the disk is full. Nothing of the batch is in the log; a later Write can succeed. Batches of vital
//     records only ([Options.Vital]) still fit for a while.
//   - [ErrFailed]: a write or a sync failed, and it is unknown whether the batch will be there after a restart. All later
//     writes fail with the same error: the kernel may have dropped the pages that it could not write.
//   - cohort.TooLarge, cohort.InvalidArgument: the caller's mistake, nothing happened.
//
// # Records that must outlive compaction
//
// [Log.Compact] drops what a snapshot covers. A caller with state that is not in its snapshot, such as raft's hard state,
// writes it into the snapshot too: whatever it was at the snapshot's number comes from there, and later changes are records
// after it. So the log needs no records that it repeats at the start of each segment.
//
// The bytes are in docs/wire/storelog.md, the tests of every fault in this package and in internal/testing/faultdisk.
package storelog
