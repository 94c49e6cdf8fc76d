// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package storejournal keeps the commands of one store server in a folder, and makes the store of the folder again.
//
// [Open] restores a machine from the newest snapshot and the commands behind it. The [Journal] is then given to
// internal/store/storeserve. It has two goroutines: one writes and syncs what has gathered while it wrote before, and one makes snapshots
// and the files that the log goes on in.
package storejournal
