// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// This file is what becomes of a reply, or of its absence: a value or an error.

// decodeReply reads status and body of an answer. The reply may keep the body if that is not used again.
func decodeReply(op wire.Op, keys int, b []byte, mayKeep bool) (wire.Reply, error) {
	if code := cohort.Code(b[0]); code != 0 {
		detail := string(b[1:min(len(b), 1024)])
		if _, rest, ok := strings.Cut(detail, code.String()+": "); ok {
			detail = rest // the client says operation and code itself
		}
		return wire.Reply{}, &cohort.Error{Op: "tcpstore", Code: code, Rank: cohort.NoRank, Detail: detail}
	}
	body := b[1:]
	switch op { //nolint:exhaustive // the others have no bytes in their replies
	case wire.Get, wire.CompareSet, wire.MultiGet, wire.QueuePop, wire.ListKeys, wire.Stats, wire.Hello, wire.Clear, wire.Backup:
		if !mayKeep {
			body = bytes.Clone(body)
		}
	}
	r, n, short, err := wire.ParseReply(wire.Native, op, keys, body, &replyLimits)
	if err == nil && (short || n != len(body)) {
		err = cohort.Newf("tcpstore: decode", cohort.Protocol, "an answer to %s with a body of %d bytes that does not fit it", op,
			len(body))
	}
	return r, err
}

// own makes a reply that points into a buffer the caller's own.
func own(r wire.Reply) wire.Reply {
	r.Value = bytes.Clone(r.Value)
	for i, v := range r.Values {
		r.Values[i] = append(make([]byte, 0, len(v)), v...)
	}
	return r
}

// present is an empty answer as a caller sees it: there, not nil.
func present(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func userKeys(raw [][]byte) []string {
	keys := make([]string, 0, len(raw))
	for _, k := range raw {
		if user, ok := bytes.CutPrefix(k, []byte(wire.KeyPrefix)); ok {
			keys = append(keys, string(user))
		}
	}
	return keys
}

func rawKeys(raw [][]byte) []string {
	keys := make([]string, len(raw))
	for i, k := range raw {
		keys[i] = string(k)
	}
	return keys
}

// explain completes an error with what was attempted and where.
func (c *Client) explain(q *request, err error) error {
	switch {
	case c.closed.Load():
		return &cohort.Error{
			Op: q.opName(), Code: cohort.Closed, Rank: cohort.NoRank, Peer: c.addr, Key: q.subject(),
			Detail: "the client was closed",
		}
	case errors.Is(err, error(errLimit)), errors.Is(err, error(errSilent)):
		return &cohort.Error{
			Op: q.opName(), Code: cohort.DeadlineExceeded, Rank: cohort.NoRank, Peer: c.addr, Key: q.subject(),
			Detail: timeoutDetail(q, c.Timeout(), errors.Is(err, error(errSilent))),
		}
	}
	return q.errorAt(c.addr, err)
}

// errorAt completes an error with what was attempted and where.
func (q *request) errorAt(addr string, err error) error {
	if err == nil {
		return nil
	}
	return &cohort.Error{
		Op: q.opName(), Code: codeOr(err, cohort.PeerLost), Rank: cohort.NoRank, Peer: addr, Key: q.subject(),
		Detail: storeop.Detail(err), Err: err,
	}
}

func codeOr(err error, code cohort.Code) cohort.Code {
	if c := cohort.CodeOf(err); c != cohort.Unknown {
		return c
	}
	return code
}

// queueEmpty is the error of a pop that does not wait.
func queueEmpty(q *request, addr string) error {
	e := storeop.QueueEmpty(q.opName(), q.key)
	e.Peer = addr
	return e
}

// timeoutDetail says that the store's timeout has passed; for a wait in the words of PyTorch, which users search for.
func timeoutDetail(q *request, timeout time.Duration, silent bool) string {
	if !q.wait {
		return fmt.Sprintf("the server has not answered within %v: it hangs, or the network is cut", boundOf(timeout, false))
	}
	if q.op == wire.Barrier {
		why := fmt.Sprintf("fewer than %d have joined", q.num)
		if silent {
			why = "the server has not answered: it hangs, or the network is cut"
		}
		return fmt.Sprintf("barrier timeout after %dms, key: %s; %s within the store's timeout of %v", timeout.Milliseconds(),
			q.key, why, timeout)
	}
	keys := wire.KeyPrefix + q.key
	if q.keys != nil {
		keys = wire.KeyPrefix + strings.Join(q.keys[:min(len(q.keys), storeop.ShownKeys)], ", "+wire.KeyPrefix)
	}
	why := "no client has set them"
	if silent {
		why = "the server has not answered: it hangs, or the network is cut; whether the keys are set is not known"
	}
	return fmt.Sprintf("wait timeout after %dms, keys: %s; %s within the store's timeout of %v",
		timeout.Milliseconds(), keys, why, timeout)
}
