// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// A coordinator that dies is started again over the same store. What the next one must know is in one record, which is
// written before any member is notified of it: the round that may be training, which of its members have finished, and whether the job has
// ended. Questions stay in the store until they are answered, and members repeat those that are not.
//
// The record is changed by compare-and-set. So a coordinator that was stopped for a while, and finds that another one has taken
// its place, can decide nothing any more.

// record is the last decision of a coordinator. The zero record is a job that has not begun.
type record struct {
	UUID      int64    `json:"uuid,omitempty"`
	Members   []ID     `json:"members,omitempty"`
	Handles   []string `json:"handles,omitempty"`   // of the members
	Questions []int64  `json:"questions,omitempty"` // of the members, that the round answers
	Again     []ID     `json:"again,omitempty"`     // members that were notified of the round a second time
	Done      []ID     `json:"done,omitempty"`      // members that have finished
	Failures  int      `json:"failures,omitempty"`
	Ended     bool     `json:"ended,omitempty"`
	Why       string   `json:"why,omitempty"`
}

// Keys of the coordinator.
const (
	epochsKey = "epochs"
	recordKey = "record"
	lookedKey = "looked" // all questions up to this one were answered
)

// takeOver becomes the coordinator and takes up what an earlier one has left.
func (c *Coordinator) takeOver(ctx context.Context) error {
	epoch, err := c.store.Add(ctx, epochsKey, 1)
	if err != nil {
		return err
	}
	c.epoch, c.desk = epoch, newDesk(epoch, c.config)
	failpoint.At("elastic.coordinator.epoch")
	if c.seen, err = c.store.Add(ctx, lookedKey, 0); err != nil {
		return err
	}
	c.looked = c.seen
	last, err := c.readRecord(ctx)
	if err != nil {
		return err
	}
	if last.Ended {
		// It died while it notified the members. Those that it has not notified read this key.
		c.ended, c.why = true, last.Why
		if err = c.set(ctx, endKey, answer{Done: last.Why == "", Error: last.Why}); err != nil {
			return err
		}
		return c.keep(ctx, record{})
	}
	if _, err = c.store.Delete(ctx, endKey); err != nil { // of an earlier job
		return err
	}
	if last.UUID == 0 {
		return c.perform(ctx, c.desk.start())
	}
	c.config.logger.Info("goes on from an earlier coordinator", slog.Int64("uuid", last.UUID), slog.Int("members", len(last.Members)))
	for _, m := range last.Members {
		if !slices.Contains(last.Done, m) { // it may have left; if it waits for the others, its question is still there
			c.signs[m] = sign{at: c.clock}
		}
	}
	over, err := c.store.Check(ctx, overKey(last.UUID))
	if err != nil {
		return err
	}
	var untold []int64
	for _, n := range last.Questions {
		there, err := c.store.Check(ctx, askKey(n))
		if err != nil {
			return err
		}
		if there {
			untold = append(untold, n)
		}
	}
	return c.perform(ctx, c.desk.resume(last, over, untold))
}

func (c *Coordinator) readRecord(ctx context.Context) (r record, err error) {
	there, err := c.store.Check(ctx, recordKey)
	if err != nil || !there {
		return r, err
	}
	if c.kept, err = c.store.Get(ctx, recordKey); err != nil {
		return r, err
	}
	if err = printable.Unmarshal(c.kept, &r); err != nil || len(r.Members) > maxMembers || len(r.Handles) != len(r.Members) ||
		len(r.Questions) != len(r.Members) {
		return r, cohort.Newf("elastic: coordinator", cohort.Protocol,
			"the record of an earlier coordinator, key %q, cannot be read: %q", recordKey, shorten(c.kept))
	}
	return r, nil
}

func shorten(b []byte) []byte { return b[:min(len(b), 100)] }

// keep writes a decision down.
func (c *Coordinator) keep(ctx context.Context, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	failpoint.At("elastic.coordinator.keep")
	now, err := c.store.CompareAndSet(ctx, recordKey, c.kept, data)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, data) {
		return errReplaced
	}
	c.kept = data
	return nil
}

var errReplaced = cohort.New("elastic: coordinator", cohort.Aborted, "another coordinator has taken over")

// stillMine looks whether another coordinator was started.
func (c *Coordinator) stillMine(ctx context.Context) error {
	epoch, err := c.store.Add(ctx, epochsKey, 0)
	if err == nil && epoch != c.epoch {
		return errReplaced
	}
	return err
}

// noteLooked writes down up to where all questions were answered: the next coordinator begins there.
func (c *Coordinator) noteLooked(ctx context.Context) error {
	low := c.seen
	for n := range c.holes {
		low = min(low, n-1)
	}
	for _, n := range c.open {
		low = min(low, n-1)
	}
	if low == c.looked {
		return nil
	}
	c.looked = low
	return c.store.Set(ctx, lookedKey, strconv.AppendInt(nil, low, 10))
}
