// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// Claim takes name for this client for as long as its connection lives, with a text that says who it is, and returns the
// text that the name has afterwards: text itself if the claim succeeded. It works like [Client.CompareAndSet], but a
// name that another living connection holds is never given away:
//
//   - expected "" claims a name that was never claimed;
//   - expecting the text of a holder whose connection has ended takes the name over;
//   - expecting one's own text changes it.
//
// Claims are not keys: they are neither counted nor listed. [Server.Claims] returns them, and [Stats] names a waiting
// client by its claim. A client that lost its connection and connected again within a minute has its claims again, but for those
// that another client has taken over meanwhile. Only cohort's server
// has claims; on PyTorch's the error is [cohort.NotSupported].
func (c *Client) Claim(ctx context.Context, name, expected, text string) (string, error) {
	q := &request{op: wire.CompareSet, key: wire.ClaimPrefix + name, raw: true, expected: []byte(expected), value: []byte(text)}
	if err := c.nativeOnly("claim", "claims"); err != nil {
		return "", err
	}
	r, err := c.do(ctx, q)
	if err != nil {
		return "", err
	}
	return string(r.Value), nil
}

// ReadBack reports whether the PyTorch client that set key has read it since: ranks of PyTorch 2.8 or later do so with
// the address that they publish for a gloo group. False may also mean that the server is not cohort's or does not know
// any more: that the client has left, for one.
func (c *Client) ReadBack(ctx context.Context, key string) (bool, error) {
	if c.back.dialect() != wire.Native {
		return false, nil
	}
	key = (&request{key: key, raw: c.config.raw}).wireKey()
	r, err := c.do(ctx, &request{op: wire.Check, keys: []string{wire.ReadBackPrefix + key}, raw: true})
	return r.Byte == wire.Ready, err
}

// Claim is what a client says it is; see [Client.Claim].
type Claim struct {
	// Text says who made the claim.
	Text string `json:"text"`
	// Held is false when that client's connection has ended.
	Held bool `json:"held"`
}

// Claims returns all claims by name. After Close there are none.
func (s *Server) Claims() map[string]Claim {
	var all map[string]storecore.Claim
	s.serving.Do(func(c *storeserve.Core) { all = c.Machine.Claims() })
	claims := make(map[string]Claim, len(all))
	for name, c := range all {
		claims[name] = Claim(c)
	}
	return claims
}
