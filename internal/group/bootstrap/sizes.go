// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"encoding/hex"
	"os"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Claims are looked at for the first time after claimAfter, since all ranks normally come in milliseconds, and then every claimEvery. A
// look is one question to the store, and at most claimTries where other ranks claim at the same time.
const (
	claimAfter = 250 * time.Millisecond
	claimEvery = 500 * time.Millisecond
	claimTries = 4
)

// claimsKey is where the ranks claim their sizes, "" for groups whose ranks are listed: those cannot be told different sizes.
func (p *Plan) claimsKey() string {
	switch {
	case p.Parent != nil || p.Origin != FromPython:
		return ""
	case p.Name == gloo.GroupName(0):
		return gloo.Join(p.Prefix, "cohort/group/0/sizes")
	}
	return gloo.Join(p.Prefix, "cohort/group/"+p.TorchName+"/"+hex.EncodeToString([]byte(p.Name))+"/sizes")
}

// watchSizes fails the attempt when ranks wait that were told another size of the world. stop ends that.
func (a *attempt) watchSizes(ctx context.Context) (stop func()) {
	key := a.p.claimsKey()
	if key == "" {
		return func() {}
	}
	host, _ := os.Hostname()
	ctx, cancel := context.WithCancel(ctx)
	var task sync.WaitGroup
	task.Go(func() {
		w := sizeWatch{
			p: a.p, key: key, others: func(said string) { a.otherSizes.Store(&said) },
			claims: newClaims(claim{Size: a.p.size(), Rank: a.p.Rank, Host: host, PID: os.Getpid()}),
		}
		conflict := w.await(ctx)
		if conflict != nil {
			a.refuse(&cohort.Error{Op: rendezvousOp, Code: cohort.Mismatch, Rank: cohort.NoRank, Detail: disagree(w.claims.me, *conflict)})
		}
	})
	return func() {
		cancel()
		failpoint.At("bootstrap.sizes.end")
		task.Wait()
	}
}

// sizeWatch looks at the claims of sizes.
type sizeWatch struct {
	p      *Plan
	key    string
	claims *claims
	text   []byte       // as it stood last
	others func(string) // is told which other sizes stand there
}

// await returns a claim that conflicts with this rank's, or nil when ctx ends.
func (w *sizeWatch) await(ctx context.Context) *claim {
	t := time.NewTimer(claimAfter)
	defer t.Stop()
	for {
		failpoint.At("bootstrap.sizes")
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		conflict := w.look(ctx)
		if w.others(w.claims.earlier(w.text)); conflict != nil {
			return conflict
		}
		t.Reset(claimEvery)
	}
}

// look renews this rank's claim unless another rank of its size has, and returns a claim that conflicts with it.
func (w *sizeWatch) look(ctx context.Context) *claim {
	var conflict *claim
	if w.claims.seen == nil {
		found, err := readIfThere(ctx, w.p.Store, w.key)
		if err != nil {
			return nil // the waiting itself will tell
		}
		w.text = found
		conflict, _ = w.claims.look(found)
	}
	for range claimTries {
		next := w.claims.renewed(w.text, conflict)
		got, err := w.p.Store.CompareAndSet(ctx, w.key, w.text, next)
		switch {
		case err != nil:
			return conflict
		case bytes.Equal(got, next):
			w.text = next
			return conflict
		case bytes.Equal(got, w.text): // the key is missing, see Store.CompareAndSet
			w.text = nil
			continue
		}
		w.text = got
		other, renew := w.claims.look(got)
		if conflict == nil {
			conflict = other
		}
		if conflict == nil && !renew {
			return nil
		}
	}
	return conflict
}
