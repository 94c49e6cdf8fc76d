// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storejournal

import (
	"io"
	"time"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storelog"
)

// The kinds of records. A kind never gets another meaning.
const (
	commandRecord = 1
	// vitalRecord is a command that no client has asked for, such as the end of a claim: it has to be logged also when the disk is full.
	vitalRecord = 2
)

// Options returns how the folder of a store is opened. With the zero identity a new folder gets one that is drawn at random.
func Options(identity storecore.Identity) storelog.Options {
	return storelog.Options{Identity: storelog.ID(identity), Holder: "a store", Vital: []byte{vitalRecord}}
}

// Recovery is what Open found.
type Recovery struct {
	Took     time.Duration
	Commands int // behind the snapshot
	Keys     int // and queues
}

// Open opens the folder of a store, makes it if there is none, and returns the machine that holds what the folder does, and the journal in
// which it goes on. The caller ends the journal, or has a server do so.
func Open(dir string, config storecore.Config, options storelog.Options) (*Journal, *storecore.Machine, error) {
	began := time.Now()
	config.Logged = true
	m, j := storecore.New(config), newJournal()
	folder, err := storelog.Open(dir, options, storelog.Replay{
		Snapshot: func(through storelog.LSN, r io.Reader) error { return m.Restore(uint64(through), r) },
		Record: func(r storelog.Record) error {
			j.recovery.Commands++
			return m.Replay(storecore.Entry{Index: uint64(r.LSN), Data: r.Data})
		},
	})
	if err != nil {
		return nil, nil, err
	}
	m.Rebase(storecore.Identity(folder.Identity()))
	m.ProposeRestart() // the connections of the process before this one have ended
	j.log = folder
	j.recovery.Took, j.recovery.Keys = time.Since(began), m.Keys()
	return j, m, nil
}
