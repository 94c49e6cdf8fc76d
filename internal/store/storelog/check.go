// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog

import "errors"

// Report is what a folder holds.
type Report struct {
	Dir      string          `json:"dir"`
	Format   uint32          `json:"format"`
	Identity string          `json:"identity"` // in hexadecimal
	Cluster  string          `json:"cluster"`
	Snapshot *SnapshotReport `json:"snapshot,omitempty"` // the newest
	Segments []SegmentReport `json:"segments"`
	Records  int64           `json:"records"` // that can be read
	Bytes    int64           `json:"bytes"`   // of them
	Problems []CorruptError  `json:"problems,omitempty"`
	Notes    []string        `json:"notes,omitempty"` // what is unusual and harmless, such as an unfinished batch
}

// SnapshotReport describes a snapshot.
type SnapshotReport struct {
	File    string `json:"file"`
	Through LSN    `json:"through"`
	Bytes   int64  `json:"bytes"` // of the state
}

// SegmentReport describes a segment.
type SegmentReport struct {
	File    string `json:"file"`
	First   LSN    `json:"first"`
	Records int64  `json:"records"` // that can be read
	Bytes   int64  `json:"bytes"`   // of the file
}

// Check reads a folder that no process has open, and changes nothing. Damage is in the report; the error is about reading.
func Check(dir string, options Options) (Report, error) { return Report{}, errors.ErrUnsupported }

// Salvaged is what Salvage did.
type Salvaged struct {
	Report   Report `json:"report"`   // of the damaged folder
	Last     LSN    `json:"last"`     // the last record that was taken over
	LeftOut  int64  `json:"left_out"` // records that can be read, but follow one that cannot
	Identity string `json:"identity"` // of the new folder
}

// Salvage makes the folder to, which must not exist or be empty, of the newest snapshot of dir and the records after it up
// to the first that cannot be read. If anything is left out, the new folder gets an identity of its own, since its store is
// not the one that clients know.
func Salvage(dir, to string, options Options) (Salvaged, error) {
	return Salvaged{}, errors.ErrUnsupported
}
