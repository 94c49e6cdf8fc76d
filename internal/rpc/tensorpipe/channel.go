// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// channel moves storages beside the descriptors and payloads. The basic channel is one connection; mpt cuts each storage
// into as many pieces as it has lanes. A storage without bytes sends nothing on either.
type channel struct {
	control *stream   // the registered connection; of mpt it carries only the hello
	lanes   []*stream // where the bytes go
}

func (c *channel) streams() []*stream {
	if len(c.lanes) == 1 && c.lanes[0] == c.control {
		return c.lanes
	}
	return append([]*stream{c.control}, c.lanes...)
}

// piece returns lane i's part of n bytes.
func piece(n, i, lanes int) (from, to int) {
	at := func(i int) int { return int(int64(n) * int64(i) / int64(lanes)) }
	return at(i), at(i + 1)
}

// write appends the steps that send data.
func (c *channel) write(steps []step, data []byte) []step {
	if len(data) == 0 {
		return steps
	}
	for i, lane := range c.lanes {
		from, to := piece(len(data), i, len(c.lanes))
		head := binary.LittleEndian.AppendUint64(nil, uint64(to-from)) //nolint:gosec // a length
		if k := len(steps) - 1; len(c.lanes) == 1 && k >= 0 && steps[k].to == lane {
			steps[k].bufs = append(steps[k].bufs, head, data[from:to]) // several storages in one writev
			continue
		}
		bufs := net.Buffers{head}
		if to > from {
			bufs = append(bufs, data[from:to])
		}
		steps = append(steps, step{lane, bufs})
	}
	return steps
}

// laneReader reads the next storage of a channel, of n bytes, part by part.
type laneReader struct {
	c     *channel
	n     int
	lane  int
	left  int // of the lane's frame
	begun bool
}

// fill fills b with the next bytes. The last lane of a storage has a byte at least, so all lanes have been read with the
// last one.
func (r *laneReader) fill(b []byte) error {
	for len(b) > 0 {
		s := r.c.lanes[r.lane]
		if !r.begun {
			from, to := piece(r.n, r.lane, len(r.c.lanes))
			s.expect(frameHead + to - from)
			if err := s.readLength(to-from, "a tensor storage"); err != nil {
				return err
			}
			r.left, r.begun = to-from, true
		}
		k := min(len(b), r.left)
		failpoint.At("tensorpipe.lane.read")
		if _, err := io.ReadFull(s.br, b[:k]); err != nil {
			return err
		}
		b = b[k:]
		if r.left -= k; r.left == 0 {
			r.lane, r.begun = r.lane+1, false
		}
	}
	return nil
}

// Message is what a pipe moves: a few payloads and the storages of tensors. Of a received message the payloads and
// storages belong to the receiver. Of a sent one they belong to the pipe until Send returns nil; see [Pipe.Send] for
// the case that it does not.
type Message struct {
	Payloads [][]byte
	Storages []*tensor.Storage
	// BufferEmpty is set on a received message when no part of another one had been read behind it.
	BufferEmpty bool
}

// Release gives the storages back to where they came from.
func (m *Message) Release() {
	for _, s := range m.Storages {
		s.Release()
	}
}

// The message types carry their direction: these bits are part of PyTorch's numbers.
const (
	requestBit  = 0x100
	responseBit = 0x200
	maxType     = 0x2ff
)

// RPCPayloads is the number of payloads of every RPC message; PyTorch aborts on any other.
const RPCPayloads = 4

// CheckOutgoing reports whether PyTorch's agent accepts the message, without looking at ids: four payloads, a type it knows
// the direction of, an id of eight bytes, a tensor table.
func CheckOutgoing(m *Message) error {
	bad := func(format string, args ...any) error {
		return cohort.Newf("tensorpipe: send", cohort.Internal, "refused before it could abort the peer: "+format, args...)
	}
	if len(m.Payloads) != RPCPayloads {
		return bad("%d payloads, an RPC message has %d", len(m.Payloads), RPCPayloads)
	}
	if len(m.Payloads[0]) != 4 || len(m.Payloads[1]) != 8 {
		return bad("type and id of %d and %d bytes, they have 4 and 8", len(m.Payloads[0]), len(m.Payloads[1]))
	}
	kind := binary.LittleEndian.Uint32(m.Payloads[0])
	if kind > maxType || (kind&requestBit == 0) == (kind&responseBit == 0) {
		return bad("message type %#x is neither a request nor a response", kind)
	}
	if id := int64(binary.LittleEndian.Uint64(m.Payloads[1])); id < 0 { //nolint:gosec // two's complement
		return bad("message id %d is negative", id)
	}
	table := m.Payloads[3]
	if len(table) < 4 || table[0] != 0x80 || table[1] != 2 || table[len(table)-1] != '.' {
		return bad("payload 3 is not a protocol 2 pickle of the tensors")
	}
	if len(m.Storages) > maxStorages {
		return bad("%d storages, the limit is %d", len(m.Storages), maxStorages)
	}
	return nil
}

// requestTable has the requests without an answer, as the other side knows them: the dialling side sends requests with fresh ids, the
// listening side answers each exactly once. PyTorch aborts on a second answer.
type requestTable struct {
	client   bool
	answered chan struct{} // of the listening side: an answer was sent

	mu struct {
		sync.Mutex
		open map[int64]struct{}
	}
}

// maxOpen bounds the requests of ours that a peer never answered. PyTorch keeps such ids for ever; so must we, because
// a late answer is still allowed.
const maxOpen = 1 << 20

func newRequestTable(client bool) *requestTable {
	l := &requestTable{client: client, answered: make(chan struct{}, 1)}
	l.mu.open = map[int64]struct{}{}
	return l
}

// wait waits until fewer than limit requests wait for our answer. Meanwhile no more are read: which is the mildest way to slow down
// a PyTorch worker, whose requests then wait in its own process; it never recovers from a pipe that ended.
func (l *requestTable) wait(ctx context.Context, limit int, closed <-chan struct{}) error {
	for {
		failpoint.At("tensorpipe.requests.check")
		l.mu.Lock()
		n := len(l.mu.open)
		l.mu.Unlock()
		if n < limit {
			return nil
		}
		failpoint.At("tensorpipe.requests.wait")
		select {
		case <-l.answered:
		case <-closed:
			return cohort.New("tensorpipe: receive", cohort.Closed, "closed")
		case <-ctx.Done():
			return cohort.FromContext(ctx, "tensorpipe: receive")
		}
	}
}

// idle reports whether every request has its answer.
func (l *requestTable) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.open) == 0
}

func head(m *Message) (kind uint32, id int64, ok bool) {
	if len(m.Payloads) != RPCPayloads || len(m.Payloads[0]) != 4 || len(m.Payloads[1]) != 8 {
		return 0, 0, false
	}
	//nolint:gosec // two's complement
	return binary.LittleEndian.Uint32(m.Payloads[0]), int64(binary.LittleEndian.Uint64(m.Payloads[1])), true
}

// sending checks and records an outgoing message.
func (l *requestTable) sending(m *Message) error {
	if err := CheckOutgoing(m); err != nil {
		return err
	}
	kind, id, _ := head(m)
	failpoint.At("tensorpipe.requests.send")
	l.mu.Lock()
	defer l.mu.Unlock()
	refuse := func(format string, args ...any) error {
		return cohort.Newf("tensorpipe: send", cohort.Internal, "refused before it could abort the peer: "+format, args...)
	}
	if l.client {
		if kind&requestBit == 0 {
			return refuse("type %#x is not a request, but this side opened the pipe", kind)
		}
		if _, dup := l.mu.open[id]; dup {
			return refuse("request id %d still waits for its answer", id)
		}
		if len(l.mu.open) >= maxOpen {
			return cohort.Newf("tensorpipe: send", cohort.Exhausted, "%d requests wait for answers that never arrived", maxOpen)
		}
		l.mu.open[id] = struct{}{}
		return nil
	}
	if kind&responseBit == 0 {
		return refuse("type %#x is not a response, but the other side opened the pipe", kind)
	}
	if _, waiting := l.mu.open[id]; !waiting {
		return refuse("no request with id %d waits for an answer", id)
	}
	delete(l.mu.open, id)
	select {
	case l.answered <- struct{}{}:
	default:
	}
	return nil
}

// received checks and records an incoming message.
func (l *requestTable) received(m *Message) error {
	kind, id, ok := head(m)
	bad := func(code cohort.Code, format string, args ...any) error {
		return cohort.Newf("tensorpipe: receive", code, format, args...)
	}
	if !ok {
		return bad(cohort.Protocol, "not an RPC message: %d payloads", len(m.Payloads))
	}
	failpoint.At("tensorpipe.requests.receive")
	l.mu.Lock()
	defer l.mu.Unlock()
	_, known := l.mu.open[id]
	if l.client {
		if !known || kind&responseBit == 0 {
			return bad(cohort.Protocol, "type %#x with id %d, which answers no request", kind, id)
		}
		delete(l.mu.open, id)
		return nil
	}
	if known || kind&requestBit == 0 {
		return bad(cohort.Protocol, "type %#x with id %d: not a new request", kind, id)
	}
	l.mu.open[id] = struct{}{}
	return nil
}
