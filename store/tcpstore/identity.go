// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// Identity names the contents of a store of cohort's server. It is drawn at random when the server starts and again when
// its keys are cleared: another identity at the same address means that the earlier keys are gone. PyTorch's servers have none,
// which is the zero Identity.
type Identity [wire.IdentitySize]byte

// String returns the first half in hexadecimal digits, which is enough to tell stores apart.
func (id Identity) String() string { return hex.EncodeToString(id[:len(id)/2]) }

// newIdentity draws an identity.
func newIdentity() (id storecore.Identity) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// Identity returns the identity of the server's present contents, the last one after Close.
func (s *Server) Identity() Identity {
	var id Identity
	if !s.serving.Do(func(c *storeserve.Core) { id = Identity(c.Machine.Identity()) }) {
		<-s.closed
		return s.final.identity
	}
	return id
}

// Clear forgets all keys, queues and claims and gives the store a new identity, as if it had been started anew. It returns
// the number of keys and queues that there were.
//
// Clients that used the store before do not reach the new one: those of Go get [cohort.Replaced] for what they wait for and
// for everything they ask from then on, those of PyTorch are cut. After Close it does nothing, and neither if the folder of the
// server refuses changes, see [WithDataDir].
func (s *Server) Clear() int {
	n, _ := s.serving.Clear() // what a folder has no room for is in the log
	return n
}

// Hello returns the identity of the store and how many keys clients of an earlier run left in it: 0 in a new or cleared
// store. PyTorch's servers have no identity; there the error is [cohort.NotSupported].
//
// A client whose store was replaced accepts the new one with this call; only then do other operations reach it.
func (c *Client) Hello(ctx context.Context) (id Identity, leftBehind int, err error) {
	if err = c.nativeOnly("hello", "identity"); err != nil {
		return id, 0, err
	}
	r, err := c.do(ctx, &request{op: wire.Hello})
	if err != nil {
		return id, 0, err
	}
	copy(id[:], r.Value)
	return id, int(r.Num), nil
}

// Clear removes all keys, queues and claims from the server: see [Server.Clear]. The identity, from [Client.Hello], must
// be that of the store's current contents, so that two clients that clear at the same time do not remove each other's new
// keys. It returns the number of keys and queues removed. PyTorch's servers cannot be cleared; there the error is
// [cohort.NotSupported].
func (c *Client) Clear(ctx context.Context, id Identity) (int, error) {
	if err := c.nativeOnly("clear", "operation that clears it"); err != nil {
		return 0, err
	}
	r, err := c.do(ctx, &request{op: wire.Clear, expected: id[:]})
	return int(r.Num), err
}

// nativeOnly refuses what only cohort's server has.
func (c *Client) nativeOnly(op, what string) error {
	if c.back.dialect() == wire.Native {
		return nil
	}
	return &cohort.Error{
		Op: "tcpstore: " + op, Code: cohort.NotSupported, Rank: cohort.NoRank, Peer: c.addr,
		Detail: "this is PyTorch's own store, which has no " + what + "; only cohort's has (cohort store serve)",
	}
}
