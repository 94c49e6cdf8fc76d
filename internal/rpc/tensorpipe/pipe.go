// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/tensor/recvalloc"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/tensor"
)

// Pipe is an established TensorPipe pipe with a PyTorch worker or another speaker of the uv transport. The side that
// opened it sends requests and receives their answers; the other side receives requests and answers each exactly once,
// in any order. Send and Recv may be called concurrently; sends take turns.
type Pipe struct {
	peer     string
	client   bool
	cfg      *config
	main     *stream
	reply    *stream // open because the protocol requires it; PyTorch never uses it
	chann    channel
	requests *requestTable
	poll     adaptivePoll
	ends     *watch // of the dialling side: its connections; see [watch]

	sending chan struct{} // holds a token while a message is written
	recving chan struct{} // holds a token while a message is read
	closed  chan struct{}
	work    sync.WaitGroup // the watch, and writes that outlived their caller's ctx

	answers atomic.Int64 // bytes of answers that are being written, or wait for it

	mu struct {
		sync.Mutex
		err error
	}
}

func newPipe(ep *Endpoint, peer string, client bool, main, reply *stream, ch channel) *Pipe {
	p := &Pipe{
		peer: peer, client: client, cfg: ep.cfg, main: main, reply: reply, chann: ch, requests: newRequestTable(client),
		sending: make(chan struct{}, 1), recving: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	if client {
		p.ends = newWatch(p.streams()...)
		p.work.Go(p.watchEnds)
	} else {
		main.takeOver(&p.poll)
		if len(ch.lanes) == 1 {
			ch.lanes[0].takeOver(&p.poll)
		}
	}
	return p
}

// Peer returns the other side's worker name where it is known (on accepted pipes), else its address.
func (p *Pipe) Peer() string { return p.peer }

// RemoteAddr returns the address of the other side.
func (p *Pipe) RemoteAddr() net.Addr { return p.main.nc.RemoteAddr() }

// Done is closed when the pipe is closed or broken.
func (p *Pipe) Done() <-chan struct{} { return p.closed }

// Err says why the pipe ended, or nil while it lives.
func (p *Pipe) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.err
}

// Close closes all connections of the pipe and waits for writes that are still under way. It is idempotent.
func (p *Pipe) Close() error {
	p.fail(cohort.New("tensorpipe: pipe", cohort.Closed, "closed"))
	failpoint.At("tensorpipe.pipe.close")
	p.work.Wait()
	return nil
}

// fail ends the pipe with the first cause.
func (p *Pipe) fail(err error) {
	failpoint.At("tensorpipe.pipe.fail")
	p.mu.Lock()
	first := p.mu.err == nil
	if first {
		p.mu.err = err
	}
	p.mu.Unlock()
	if !first {
		return
	}
	close(p.closed)
	p.ends.close()
	for _, s := range p.streams() {
		_ = s.nc.Close()
	}
}

func (p *Pipe) streams() []*stream {
	all := append([]*stream{p.main}, p.chann.streams()...)
	if p.reply != nil {
		all = append(all, p.reply)
	}
	return all
}

// broken turns the error of a connection into the pipe's error and ends the pipe.
func (p *Pipe) broken(op string, err error) error {
	var timeout net.Error
	wrapped := cohort.Wrap(op, cohort.PeerLost, err)
	wrapped.Peer = p.peer
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		wrapped.Detail = "the peer closed the connection"
	case errors.As(err, &timeout) && timeout.Timeout():
		wrapped.Code = cohort.PeerLost
		wrapped.Detail = "the peer does not read"
	}
	p.fail(wrapped)
	return p.Err()
}

// ErrUnsent is in the error of a Send whose context ended before anything was written.
var ErrUnsent = errors.New("nothing was sent")

// Send writes a message. It returns when the kernel has all of it, so the storages may be changed afterwards.
//
// A message that PyTorch would not accept is refused before anything is written. When ctx ends before the pipe's turn
// comes, nothing was written, and the error is [ErrUnsent] too. When it ends during the write, Send returns at once and
// the rest is written in the background, since half a message would break the pipe for every other call: the payloads
// and storages then belong to the pipe until it is closed.
func (p *Pipe) Send(ctx context.Context, m *Message) error {
	steps, err := p.steps(m)
	if err != nil {
		return err
	}
	size, err := p.admit(m)
	if err != nil {
		return err
	}
	written := func() {
		p.answers.Add(-size)
		<-p.sending
	}
	failpoint.At("tensorpipe.pipe.send")
	select {
	case p.sending <- struct{}{}:
	case <-p.closed:
		p.answers.Add(-size)
		return p.Err()
	case <-ctx.Done():
		p.answers.Add(-size)
		return fmt.Errorf("%w: %w", ErrUnsent, cohort.FromContext(ctx, "tensorpipe: send"))
	}
	if ctx.Err() != nil { // select may choose either case when ctx had ended before
		written()
		return fmt.Errorf("%w: %w", ErrUnsent, cohort.FromContext(ctx, "tensorpipe: send"))
	}
	if err := p.requests.sending(m); err != nil {
		written()
		return err
	}
	stop := interrupt(ctx, func() {
		for i := range steps {
			_ = steps[i].to.nc.SetWriteDeadline(time.Unix(1, 0))
		}
	})
	for i := range steps {
		err := steps[i].run(ctx)
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			stop()
			written()
			return p.broken("tensorpipe: send", err)
		}
		stop()
		renew(steps)
		p.finish(steps[i:], written)
		return cohort.FromContext(ctx, "tensorpipe: send")
	}
	if !stop() { // ctx ended at the last moment
		renew(steps)
	}
	written()
	return nil
}

// smallAnswer is the size up to which answers are accepted whatever waits: there must be room to report an error.
const smallAnswer = 64 << 10

// admit counts the bytes of an answer until it has been written. It refuses one that is not small while too many bytes
// wait for a peer that does not read.
func (p *Pipe) admit(m *Message) (size int64, err error) {
	if p.client {
		return 0, nil // requests wait at their callers
	}
	for _, b := range m.Payloads {
		size += int64(len(b))
	}
	for _, s := range m.Storages {
		size += int64(s.Len())
	}
	if now := p.answers.Add(size); now > p.cfg.limits.Waiting && now > size && size > smallAnswer {
		p.answers.Add(-size)
		e := cohort.Newf("tensorpipe: send", cohort.Exhausted,
			"%d bytes wait for the peer to read them; %d more are over the limit of %d", now-size, size, p.cfg.limits.Waiting)
		e.Peer = p.peer
		return 0, e
	}
	return size, nil
}

// interrupt runs fn when ctx ends. The returned function takes that back; it reports false when fn has run, and then
// only after it is done, so that its effect can be undone.
func interrupt(ctx context.Context, fn func()) func() bool {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { fn(); close(done) })
	return func() bool {
		if stop() {
			return true
		}
		failpoint.At("tensorpipe.pipe.interrupted")
		<-done
		return false
	}
}

// renew makes the next write set its deadline, in place of the one that the end of a ctx left.
func renew(steps []step) {
	for i := range steps {
		steps[i].to.set = time.Time{}
	}
}

// finish writes the rest of a message whose sender has returned.
func (p *Pipe) finish(steps []step, written func()) {
	p.work.Go(func() {
		defer written()
		for i := range steps {
			if err := steps[i].run(nil); err != nil { //nolint:staticcheck // no ctx: the stall limit and Close end it
				_ = p.broken("tensorpipe: send", err)
				return
			}
		}
	})
}

// inlinePayload is the size up to which a payload is copied to stand beside its neighbours.
const inlinePayload = 16 << 10

// steps lays out the writes of a message: descriptor and payloads, then the storages.
func (p *Pipe) steps(m *Message) ([]step, error) {
	d := descriptor{Payloads: make([]uint64, len(m.Payloads))}
	for i, b := range m.Payloads {
		d.Payloads[i] = uint64(len(b))
	}
	if len(m.Storages) > 0 {
		d.Storages = make([]storageDescriptor, len(m.Storages))
	}
	for i, s := range m.Storages {
		d.Storages[i] = storageDescriptor{Length: uint64(s.Len()), Source: cpu, Target: cpu} //nolint:gosec // a length
	}
	if err := d.check(p.cfg.limits); err != nil {
		e := cohort.Wrap("tensorpipe: send", cohort.TooLarge, err)
		return nil, e
	}
	small := appendFrame(make([]byte, 0, 512), d.Append(nil))
	var bufs net.Buffers
	for _, b := range m.Payloads {
		if len(b) <= inlinePayload {
			small = appendFrame(small, b)
			continue
		}
		small = binary.LittleEndian.AppendUint64(small, uint64(len(b)))
		bufs = append(bufs, small, b)
		small = nil
	}
	if len(small) > 0 {
		bufs = append(bufs, small)
	}
	steps := append(make([]step, 0, 2), step{p.main, bufs})
	for _, s := range m.Storages {
		data, err := s.Bytes()
		if err != nil {
			return nil, err
		}
		steps = p.chann.write(steps, data)
	}
	return steps, nil
}

// Recv reads the next message. When ctx ends while no message has begun, the pipe stays usable; within a message it is
// broken. A message over the limits, or one that is not an RPC message, breaks the pipe too.
func (p *Pipe) Recv(ctx context.Context) (*Message, error) {
	failpoint.At("tensorpipe.pipe.recv.turn")
	select {
	case p.recving <- struct{}{}:
	case <-p.closed:
		return nil, p.Err()
	case <-ctx.Done():
		return nil, cohort.FromContext(ctx, "tensorpipe: receive")
	}
	defer func() { <-p.recving }()
	stop := interrupt(ctx, func() {
		for _, s := range p.streams() {
			_ = s.nc.SetReadDeadline(time.Unix(1, 0))
		}
	})
	defer func() {
		if !stop() {
			for _, s := range p.streams() {
				_ = s.nc.SetReadDeadline(time.Time{})
			}
		}
	}()
	if !p.client {
		if err := p.requests.wait(ctx, p.cfg.limits.Requests, p.closed); err != nil {
			if p.Err() != nil {
				err = p.Err()
			}
			return nil, err
		}
	}
	failpoint.At("tensorpipe.pipe.recv")
	p.poll.begin(!p.client && p.requests.idle())
	p.main.expect(minMessage)
	if _, err := p.main.br.Peek(1); err != nil {
		if ctx.Err() != nil && p.Err() == nil {
			return nil, cohort.FromContext(ctx, "tensorpipe: receive")
		}
		return nil, p.broken("tensorpipe: receive", err)
	}
	p.poll.arrived()
	m, err := p.read()
	if err == nil {
		err = p.requests.received(m)
	}
	if err != nil {
		return nil, p.broken("tensorpipe: receive", err)
	}
	m.BufferEmpty = p.main.br.Buffered() == 0
	return m, nil
}

func (p *Pipe) read() (*Message, error) {
	frame, err := p.main.readFrame(maxDescriptor, "a descriptor")
	if err != nil {
		return nil, err
	}
	d, err := parseDescriptor(frame)
	if err != nil {
		return nil, err
	}
	if err = d.check(p.cfg.limits); err != nil {
		return nil, err
	}
	m := &Message{Payloads: make([][]byte, len(d.Payloads))}
	rest := int64(0)
	for _, n := range d.Payloads {
		rest += frameHead + int64(n) //nolint:gosec // checked against the limit
	}
	p.main.expect(int(min(rest, readBuffer)))
	// Storages are sent behind the payloads. When they have arrived so have the payloads, which saves a wait; but a peer that sends
	// them one after the other can only do so when the first fits the buffers.
	if rest <= readBuffer {
		if err = p.readStorages(m, d.Storages); err == nil {
			err = p.readPayloads(m, d.Payloads)
		}
	} else {
		if err = p.readPayloads(m, d.Payloads); err == nil {
			err = p.readStorages(m, d.Storages)
		}
	}
	if err != nil {
		m.Release()
		return nil, err
	}
	return m, nil
}

func (p *Pipe) readPayloads(m *Message, sizes []uint64) (err error) {
	for i, n := range sizes {
		if m.Payloads[i], err = p.main.readFrame(int64(n), "a payload"); err != nil { //nolint:gosec // checked against the limit
			return err
		}
		if uint64(len(m.Payloads[i])) != n {
			return cohort.Newf("tensorpipe: receive", cohort.Protocol, "a payload of %d bytes where %d were announced",
				len(m.Payloads[i]), n)
		}
	}
	return nil
}

func (p *Pipe) readStorages(m *Message, all []storageDescriptor) error {
	if len(all) > 0 {
		m.Storages = make([]*tensor.Storage, 0, len(all))
	}
	for _, s := range all {
		lanes := laneReader{c: &p.chann, n: int(s.Length)} //nolint:gosec // checked against the limit
		storage, err := recvalloc.Storage(lanes.n, p.cfg.alloc, p.cfg.ahead, lanes.fill)
		if err != nil {
			return err
		}
		m.Storages = append(m.Storages, storage)
	}
	return nil
}
