// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo/gloowire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Timing of generation Auto.
const (
	detectPoll = 10 * time.Millisecond
	// detectLimit is how long Auto waits for a peer to show its generation. If none does, all ranks may be waiting for each other.
	detectLimit = 3 * time.Second
)

// detect finds the generation by what peers put into the store. A rank of generation A or B sets its host name before
// anything else; one of C or D sets only its record.
func (d *device) detect(ctx context.Context) (Generation, error) {
	check, ok := d.cfg.Store.(checker)
	if !ok {
		return auto, cohort.New("gloo: detect generation", cohort.NotSupported,
			"the store cannot look for keys without waiting: set the generation")
	}
	limit, cancel := context.WithTimeout(ctx, detectLimit)
	defer cancel()
	old, err := d.poll(limit, func(r int) (bool, bool, error) {
		has, err := check.Check(limit, hostKey(d.cfg.Prefix, d.index, r))
		if has || err != nil {
			return has, true, err
		}
		has, err = check.Check(limit, recordKey(d.cfg.Prefix, d.index, r))
		if has && err == nil { // it may have set its host name between the two polls
			again, againErr := check.Check(limit, hostKey(d.cfg.Prefix, d.index, r))
			if again || againErr != nil {
				return again, true, againErr
			}
		}
		return has, false, err
	})
	if err != nil {
		return d.undecided(ctx, err, C)
	}
	if !old {
		return C, nil
	}
	// A or B: the records differ, but a peer with a higher rank waits for our host name first.
	if err = d.announceHost(ctx); err != nil {
		return auto, err
	}
	var found Generation
	_, err = d.poll(limit, func(r int) (bool, bool, error) {
		key := recordKey(d.cfg.Prefix, d.index, r)
		if has, checkErr := check.Check(limit, key); !has || checkErr != nil {
			return false, false, checkErr
		}
		raw, getErr := d.cfg.Store.Get(limit, key)
		if getErr != nil {
			return false, false, getErr
		}
		record, parseErr := gloowire.ParseRecord(raw, d.cfg.Size)
		found = record.Generation
		return parseErr == nil, true, parseErr
	})
	if err != nil {
		return d.undecided(ctx, err, A)
	}
	return found, nil
}

// poll asks about every peer until look answers found for one, and returns look's second value.
func (d *device) poll(ctx context.Context, look func(rank int) (found, value bool, err error)) (bool, error) {
	tick := time.NewTicker(detectPoll)
	defer tick.Stop()
	for {
		for r := range d.pairs {
			if r == d.cfg.Rank {
				continue
			}
			if found, value, err := look(r); found || err != nil {
				return value, err
			}
		}
		failpoint.At("gloo.detect")
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, cohort.FromContext(ctx, "gloo: detect generation")
		}
	}
}

// undecided returns fallback when only the time for detection is over.
func (d *device) undecided(ctx context.Context, err error, fallback Generation) (Generation, error) {
	if ctx.Err() == nil && cohort.CodeOf(err) == cohort.DeadlineExceeded {
		return fallback, nil
	}
	return auto, err
}
