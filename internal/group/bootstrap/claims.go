// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// Ranks that are told different sizes of the world wait under different keys, and would not hear of each other. So a rank that waits longer
// than usual claims its size under one key for all sizes, and renews its claim as long as it waits. What stands there when it looks for the
// first time may be left from a job that has ended. A claim that another process renews twice after that is one of a process that waits
// now.

// claim is what a rank that waits says.
type claim struct {
	Size    int    `json:"size"`
	Rank    int    `json:"rank"`
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Turn    int    `json:"turn"`              // one more than those of the claims that stood there
	Word    string `json:"word"`              // another one each time
	Against *claim `json:"against,omitempty"` // the claim with which it conflicts: this rank has failed for it
}

// maxClaims is for how many sizes there are claims. maxClaimed bounds what is read.
const (
	maxClaims  = 8
	maxClaimed = 8 << 10
)

// renewals is how often another rank renews its claim, while this one looks, until they conflict: a rank whose time was over at the first
// of them is gone by the second.
const renewals = 2

// claims is what one rank knows of the claims. It has no clock and no store.
type claims struct {
	me   claim
	word func() string
	seen map[int]*sighting // by size; nil before the first look
}

// sighting is what this rank has seen of the claims for one size.
type sighting struct {
	word    string
	renewed int
}

func newClaims(me claim) *claims {
	return &claims{me: me, word: func() string { return rand.Text()[:8] }}
}

// look takes in what stands under the key. It returns the claim that conflicts with this rank's, if there is one, and whether a claim of
// this rank is wanted there: no other rank has renewed that of its size since the last look.
func (c *claims) look(text []byte) (conflict *claim, renew bool) {
	first := c.seen == nil
	if first {
		c.seen = map[int]*sighting{}
	}
	found, renew := parseClaims(text), true
	for size, other := range found {
		s := c.seen[size]
		if s == nil {
			s = &sighting{}
			c.seen[size] = s
			if first {
				s.word = other.Word
			}
		}
		if s.word == other.Word {
			continue
		}
		s.word = other.Word
		s.renewed++
		switch {
		case size == c.me.Size && other.Against == nil:
			renew = false
		case size == c.me.Size:
			conflict = other.Against // of another rank of this size, which has failed for it
		case s.renewed >= renewals || other.Against != nil:
			conflict = &other
		}
	}
	return conflict, renew
}

// renewed returns what is to stand under the key instead of text: with this rank's claim.
func (c *claims) renewed(text []byte, against *claim) []byte {
	all := parseClaims(text)
	own := c.me
	own.Word = c.word()
	oldest := own.Size
	for size, other := range all {
		own.Turn = max(own.Turn, other.Turn+1)
		if size != own.Size && (oldest == own.Size || other.Turn < all[oldest].Turn) {
			oldest = size
		}
	}
	if _, renews := all[own.Size]; !renews && len(all) == maxClaims {
		delete(all, oldest)
	}
	if against != nil {
		short := *against
		short.Against, own.Against = nil, &short
	}
	all[own.Size] = own
	c.seen[own.Size] = &sighting{word: own.Word}
	list := make([]claim, 0, len(all))
	for _, size := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[size])
	}
	next, err := json.Marshal(list)
	if err != nil {
		return text
	}
	return next
}

// parseClaims reads the claims, by size. What cannot be one is left out.
func parseClaims(text []byte) map[int]claim {
	var list []claim
	if len(text) > maxClaimed || printable.Unmarshal(text, &list) != nil {
		return map[int]claim{}
	}
	all := map[int]claim{}
	for _, c := range list[:min(len(list), maxClaims)] {
		if c.valid() && (c.Against == nil || c.Against.valid()) {
			all[c.Size] = c
		}
	}
	return all
}

// earlier says which other sizes were claimed, as far as that does not conflict: by jobs before, or by ranks that have given up.
func (c *claims) earlier(text []byte) string {
	all := parseClaims(text)
	var said strings.Builder
	for _, size := range slices.Sorted(maps.Keys(all)) {
		if other := all[size]; size != c.me.Size {
			fmt.Fprintf(&said, "; rank %d %s came before, with a world size of %d instead of %d",
				other.Rank, process(other.Host, other.PID), size, c.me.Size)
		}
	}
	return said.String()
}

func (c *claim) valid() bool { return c.Size > 0 && c.Rank >= 0 && c.Rank < c.Size && c.Word != "" }

// disagree says what two claims are.
func disagree(a, b claim) string {
	if a.Size > b.Size {
		a, b = b, a
	}
	return fmt.Sprintf("the ranks disagree about the world size: rank %d %s has %d, rank %d %s has %d; give all ranks the same",
		a.Rank, process(a.Host, a.PID), a.Size, b.Rank, process(b.Host, b.PID), b.Size)
}

// process names a process by what it says about itself in the store.
func process(host string, pid int) string {
	return fmt.Sprintf("(process %d on %s)", pid, hostName(host))
}

// maxHost is how long the name of a host can be.
const maxHost = 253

// hostName returns the name that another process gives its host, if it can be one.
func hostName(host string) string {
	allowed := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_'
	}
	for _, r := range host {
		if !allowed(r) {
			return "an unnamed host"
		}
	}
	if host == "" || len(host) > maxHost {
		return "an unnamed host"
	}
	return host
}

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

// watchSizes fails the attempt when ranks wait that were given another size of the world. stop ends that.
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
	others func(string) // receives which other sizes stand there
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
