// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package distautograd

import (
	"encoding/binary"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/autograd/backwardcore"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// Training opens and closes a context per step. Among Go workers the clean-ups of a few steps leave in one message: one for
// each would cost as much as the forward call. They wait for cleanupDelay at most, or until there are cleanupBatch.
const (
	cleanupDelay = 5 * time.Millisecond
	cleanupBatch = 64
)

// cleanupLocked keeps a clean-up for the next message to its worker.
func (e *Engine) cleanupLocked(msg message, w *work) {
	e.mu.cleanups[msg.To] = append(e.mu.cleanups[msg.To], msg.Context)
	if len(e.mu.cleanups[msg.To]) >= cleanupBatch {
		e.takeCleanupsLocked(msg.To, w)
	}
	if e.mu.due == nil {
		e.mu.due = time.AfterFunc(cleanupDelay, e.sendCleanups)
	}
}

// takeCleanupsLocked makes one message of the clean-ups for a worker.
func (e *Engine) takeCleanupsLocked(to backwardcore.Worker, w *work) {
	batch := e.mu.cleanups[to]
	delete(e.mu.cleanups, to)
	w.sends = append(w.sends, sending{
		key: exchange{kind: backwardcore.Cleanup, peer: to, context: batch[0]},
		msg: message{Kind: backwardcore.Cleanup, From: e.self(), To: to}, batch: batch,
	})
}

// sendCleanups sends all clean-ups that wait.
func (e *Engine) sendCleanups() {
	failpoint.At("distautograd.cleanups")
	var w work
	e.mu.Lock()
	if e.mu.due != nil {
		e.mu.due.Stop()
		e.mu.due = nil
	}
	if !e.mu.closed {
		for to := range e.mu.cleanups {
			e.takeCleanupsLocked(to, &w)
		}
	}
	e.mu.Unlock()
	e.after(w)
}

// cleanedLocked tells the machine of clean-ups that were answered, or were not.
func (e *Engine) cleanedLocked(m *machine, s sending, err error) {
	batch := s.batch
	if batch == nil {
		batch = []backwardcore.Context{s.msg.Context}
	}
	for _, c := range batch {
		delete(e.mu.flying, exchange{kind: backwardcore.Cleanup, peer: s.msg.To, context: c})
		if err == nil || cohort.CodeOf(err) == cohort.Remote {
			m.Receive(message{Kind: backwardcore.Cleaned, From: s.msg.To, To: s.msg.From, Context: c})
		}
	}
}

// encodeCleanups is the message of several clean-ups: goForm kind contexts(4), per context its id(8).
func encodeCleanups(all []backwardcore.Context) *rpcwire.Message {
	b := append(make([]byte, 0, 6+8*len(all)), goForm, byte(backwardcore.Cleanup))
	b = binary.BigEndian.AppendUint32(b, uint32(len(all))) //nolint:gosec // a batch
	for _, c := range all {
		b = binary.BigEndian.AppendUint64(b, uint64(idOf(c))) //nolint:gosec // two's complement
	}
	return &rpcwire.Message{Type: rpcwire.BackwardAutogradReq, Payload: b}
}

// isCleanups reports whether a message is one of clean-ups.
func isCleanups(m *rpcwire.Message) bool {
	return len(m.Payload) > 1 && m.Payload[0] == goForm && m.Payload[1] == byte(backwardcore.Cleanup)
}

func decodeCleanups(m *rpcwire.Message) ([]backwardcore.Context, error) {
	b := m.Payload[2:]
	if len(b) < 4 || len(m.Tensors) > 0 || int64(len(b)-4) != 8*int64(binary.BigEndian.Uint32(b)) {
		return nil, badMessage("%d bytes and %d tensors are no clean-up", len(m.Payload), len(m.Tensors))
	}
	var all []backwardcore.Context
	for b = b[4:]; len(b) > 0; b = b[8:] {
		all = append(all, ID(binary.BigEndian.Uint64(b)).context()) //nolint:gosec // two's complement
	}
	return all, nil
}
