// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storelog_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storelog"
	"github.com/cohort-dist/cohort/internal/testing/faultdisk"
)

var seeds = flag.Int("storelog.seeds", 1, "random workloads for each fault")

const steps = 40

var errEnded = errors.New("the process was ended")

// workload runs a caller until its steps are done or stop says so.
func workload(d *faultdisk.Disk, u *user, steps int, stop func(error) bool) error {
	if err := u.open(d); err != nil {
		return err
	}
	for range steps {
		if err := u.step(); err != nil && stop(err) {
			return err
		}
	}
	return u.log.Close()
}

// operations counts what a workload does to the disk.
func operations(t *testing.T, seed uint64) int {
	t.Helper()
	d := &faultdisk.Disk{}
	if err := workload(d, newUser(seed), steps, func(error) bool { return true }); err != nil {
		t.Fatal(err)
	}
	return d.Ops()
}

// TestEndedAnywhere ends the process, or the power, before each operation on the disk. What was acknowledged is there
// afterwards; the batch that was being written is there as a whole or not at all; and the log goes on.
func TestEndedAnywhere(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*seeds) {
		for n := range operations(t, seed) {
			d, u := &faultdisk.Disk{}, newUser(seed)
			d.Rand = rand.New(rand.NewPCG(seed, uint64(n)))
			d.Fault = func(op faultdisk.Op) error {
				if op.N > n {
					return errEnded
				}
				return nil
			}
			_ = workload(d, u, steps, func(error) bool { return true })
			for name, after := range map[string]*faultdisk.Disk{"killed": d.Killed(), "power lost": d.PowerLost(d.Rand)} {
				next := newUser(seed + 100)
				next.acked, next.maybe = u.acked, u.maybe
				if err := workload(after, next, 3, func(error) bool { return true }); err != nil {
					t.Fatalf("seed %d, %s before operation %d of %d: %v", seed, name, n+1, operations(t, seed), err)
				}
			}
		}
	}
}

// TestFailedOperation lets each operation fail once, with an error that is final or one that is not.
func TestFailedOperation(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC} {
		for seed := range uint64(*seeds) {
			for n := range operations(t, seed) {
				if err := failOnce(seed, n, fault); err != nil {
					t.Fatalf("seed %d, %v at operation %d: %v", seed, fault, n+1, err)
				}
			}
		}
	}
}

// failOnce runs a workload in which one operation fails, and then looks what the disk holds.
func failOnce(seed uint64, n int, fault error) error {
	d, u := &faultdisk.Disk{}, newUser(seed)
	d.Rand = rand.New(rand.NewPCG(seed, uint64(n)))
	var at faultdisk.Op
	d.Fault = func(op faultdisk.Op) error {
		if op.N == n+1 {
			at = op
			return fault
		}
		return nil
	}
	ended := workload(d, u, steps, func(error) bool { return false })
	d.Fault = nil
	if u.log != nil && !errors.Is(ended, fault) { // else Open or Close has failed, and said so
		failed := u.log.Stats().Failed
		_ = u.log.Close()
		if err := judge(u, at, fault, failed); err != nil {
			return err
		}
	}
	for name, after := range map[string]*faultdisk.Disk{"killed": d.Killed(), "power lost": d.PowerLost(d.Rand)} {
		next := newUser(seed + 100)
		next.acked, next.maybe = u.acked, u.maybe
		if err := workload(after, next, 3, func(error) bool { return true }); err != nil {
			return fmt.Errorf("%s after a failed %s of %s: %w", name, at.Kind, at.Name, err)
		}
	}
	return nil
}

// judge checks what became of a log after a fault: a failed sync ends it, a full disk does not.
func judge(u *user, at faultdisk.Op, fault, failed error) error {
	appending := at.Kind == "write" && at.Name != "new.tmp" && at.Name != "snapshot.tmp"
	switch {
	case errors.Is(fault, syscall.ENOSPC) && at.Kind == "write" && failed != nil:
		return fmt.Errorf("a full disk is final: %w", failed)
	case errors.Is(fault, syscall.EIO) && appending && !errors.Is(failed, storelog.ErrFailed):
		return fmt.Errorf("a failed write of %s is not final: %w", at.Name, failed)
	case at.Kind == "sync" && at.Name != "new.tmp" && at.Name != "snapshot.tmp" && !errors.Is(failed, storelog.ErrFailed):
		return fmt.Errorf("a failed sync of %s is not final: %w", at.Name, failed)
	}
	return nil
}

// TestFailedSyncIsFinal: no later write is tried, even if the disk works again.
func TestFailedSyncIsFinal(t *testing.T) {
	t.Parallel()
	d, u := &faultdisk.Disk{}, newUser(1)
	if err := u.open(d); err != nil {
		t.Fatal(err)
	}
	d.Fault = func(op faultdisk.Op) error {
		if op.Kind == "sync" {
			return syscall.EIO
		}
		return nil
	}
	first := u.write(batch(u.random, 100))
	d.Fault = nil
	ops := d.Ops()
	second := u.write(batch(u.random, 100))
	if !errors.Is(first, storelog.ErrFailed) || !errors.Is(first, syscall.EIO) || !errors.Is(second, storelog.ErrFailed) {
		t.Errorf("%v, then %v", first, second)
	}
	if d.Ops() != ops {
		t.Errorf("%d operations after the failure", d.Ops()-ops)
	}
	if err := u.log.Close(); err != nil {
		t.Error(err)
	}
}

// TestFullDisk: ordinary batches are refused, vital ones still fit, and with room everything works again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	d, u := &faultdisk.Disk{}, newUser(1)
	if err := u.open(d); err != nil {
		t.Fatal(err)
	}
	d.Fault = func(op faultdisk.Op) error {
		if op.Kind == "create" {
			return syscall.ENOSPC
		}
		return nil
	}
	var err error
	written := 0
	for ; err == nil && written < 1000; written++ {
		err = u.write(batch(u.random, 100))
	}
	if !errors.Is(err, cohort.Exhausted) || errors.Is(err, storelog.ErrFailed) || !u.log.Stats().Full || written < 10 {
		t.Fatalf("after %d batches: %v, %+v", written, err, u.log.Stats())
	}
	for range 5 {
		if err := u.write([]storelog.Record{{Kind: vital, Data: make([]byte, 50)}}); err != nil {
			t.Fatalf("a vital record: %v", err)
		}
	}
	if err := u.log.Close(); err != nil { // a full disk does not keep the folder from being opened
		t.Fatal(err)
	}
	if err := u.open(d); err != nil {
		t.Fatal(err)
	}
	if err := u.write(batch(u.random, 100)); !errors.Is(err, cohort.Exhausted) {
		t.Errorf("still full: %v", err)
	}
	d.Fault = nil
	if err := u.write(batch(u.random, 100)); err != nil || u.log.Stats().Full {
		t.Errorf("with room: %v, %+v", err, u.log.Stats())
	}
	if err := u.log.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := recovered(d); err != nil || s != u.acked {
		t.Errorf("%v, %v; acknowledged %v", s, err, u.acked)
	}
}

// TestFullDiskUndo: a batch that was written in part is undone, also when that does not work at first.
func TestFullDiskUndo(t *testing.T) {
	t.Parallel()
	d, u := &faultdisk.Disk{}, newUser(1)
	d.Rand = rand.New(rand.NewPCG(1, 1))
	if err := u.open(d); err != nil {
		t.Fatal(err)
	}
	for i := range 200 {
		failing := u.random.IntN(4) // the first writes of a batch and its undoing
		d.Fault = func(op faultdisk.Op) error {
			if failing--; op.Kind == "write" && failing >= 0 {
				return syscall.ENOSPC
			}
			return nil
		}
		if err := u.write(batch(u.random, 600)); err != nil && !errors.Is(err, cohort.Exhausted) {
			t.Fatal(err)
		}
		d.Fault = nil
		if i%10 == 0 {
			if s, err := recovered(d.PowerLost(d.Rand)); err != nil || s != u.acked {
				t.Fatalf("batch %d: %v, %v; acknowledged %v", i, s, err, u.acked)
			}
		}
	}
	if u.full < 20 {
		t.Errorf("only %d batches were refused", u.full)
	}
}
