// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package memberlink

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/store/cluster/internal/membercore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// side is a member that notes what it is told.
type side struct {
	*Links

	addr     string
	messages chan *raftpb.Message
	broken   chan uint64
	removed  chan struct{}
	mu       sync.Mutex
	gone     []uint64
	state    []byte
}

func (s *side) Message(ctx context.Context, m *raftpb.Message) {
	select {
	case s.messages <- m:
	case <-ctx.Done():
	}
}

func (s *side) Broken(_ context.Context, id uint64) {
	select {
	case s.broken <- id:
	default:
	}
}

func (s *side) Snapshot(_ context.Context, _ *raftpb.Message, r io.Reader) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, err = io.ReadAll(r)
	return err
}

func (s *side) Request(_ context.Context, request []byte) []byte {
	return append([]byte("answer to "), request...)
}

func (s *side) Gone(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.gone, id)
}

func (s *side) Removed() {
	select {
	case s.removed <- struct{}{}:
	default:
	}
}

func (s *side) Level(uint64, int) {}

// newSide starts a member on a port of its own.
func newSide(t *testing.T, id uint64, change func(*Config)) *side {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &side{
		addr: l.Addr().String(), messages: make(chan *raftpb.Message, 16), broken: make(chan uint64, 16), removed: make(chan struct{}, 1),
	}
	c := Config{
		Cluster: [16]byte{1}, Self: id, Level: 1, Handler: s, Users: peeruid.Default(nil, nil), Log: slog.New(slog.DiscardHandler),
		SnapshotRate: 1 << 30, SnapshotSize: 8 << 20,
	}
	if change != nil {
		change(&c)
	}
	s.Links = New(c)
	s.Serve(l)
	t.Cleanup(s.Close)
	return s
}

// know makes two members hold connections.
func know(a, b *side) {
	members := []membercore.Member{{ID: a.config.Self, Addr: a.addr}, {ID: b.config.Self, Addr: b.addr}}
	a.SetMembers(members)
	b.SetMembers(members)
}

func message(from, to, index uint64) *raftpb.Message {
	return &raftpb.Message{Type: raftpb.MsgApp.Enum(), From: new(from), To: new(to), Index: new(index), Entries: []*raftpb.Entry{
		{Data: make([]byte, 1000)},
	}}
}

// arrives sends until a message has arrived: what is sent before there is a connection is dropped.
func arrives(t *testing.T, a, b *side) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		a.Send(message(a.config.Self, b.config.Self, 7))
		select {
		case m := <-b.messages:
			if m.GetIndex() != 7 || len(m.GetEntries()) != 1 {
				t.Fatalf("got %v", m)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("no message arrives")
}

// TestMessages: messages arrive, and a member that ends is noticed at once by both connections with it.
func TestMessages(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	know(a, b)
	arrives(t, a, b)
	arrives(t, b, a)
	b.Close()
	select {
	case id := <-a.broken:
		if id != 2 {
			t.Errorf("the connection with %d broke", id)
		}
	case <-time.After(10 * time.Second):
		t.Error("a broken connection is not noticed")
	}
}

// TestQueue: what a member does not take is dropped, and sending never waits.
func TestQueue(t *testing.T) {
	t.Parallel()
	q := queue{wakeup: make(chan struct{}, 1)}
	for i := range uint64(2 * maxQueued) {
		q.put(message(1, 2, i))
	}
	if n := len(q.take()); n != maxQueued {
		t.Errorf("%d messages wait, the limit is %d", n, maxQueued)
	}
	big := message(1, 2, 0)
	big.Entries[0].Data = make([]byte, maxQueuedBytes+1)
	q.put(big)
	q.put(message(1, 2, 1))
	if n := len(q.take()); n != 1 {
		t.Errorf("%d messages wait: one that is larger than the limit waits alone", n)
	}
}

// TestRefusals: members of other clusters, with other ids and those that were removed are refused, each with a reason.
func TestRefusals(t *testing.T) {
	b := newSide(t, 2, nil)
	b.gone = []uint64{9}
	own := [16]byte{1}
	for _, c := range []struct {
		name, want string
		h          hello
	}{
		{"another cluster", "belongs to cluster", hello{Format: 1, Kind: kindMessages, Cluster: make([]byte, 16), From: 1, To: 2}},
		{"another member", "it is for member 3", hello{Format: 1, Kind: kindMessages, Cluster: own[:], From: 1, To: 3}},
		{"an old format", "upgrade it", hello{Format: 0, Kind: kindMessages, Cluster: own[:], From: 1, To: 2}},
		{"an unknown kind", "not known as a kind", hello{Format: 1, Kind: "x\x1b", Cluster: own[:], From: 1, To: 2}},
		{"a removed member", "was removed", hello{Format: 1, Kind: kindMessages, Cluster: own[:], From: 9, To: 2}},
	} {
		conn, err := Dial(t.Context(), b.addr, nil, c.h)
		if err == nil {
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestRemoved: a member that was removed is told, although its connections had been accepted before.
func TestRemoved(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	know(a, b)
	arrives(t, a, b)
	b.mu.Lock()
	b.gone = []uint64{1}
	b.mu.Unlock()
	select {
	case <-a.removed:
	case <-time.After(10 * time.Second):
		t.Error("it is not told")
	}
}

// TestSnapshot: the state of a snapshot arrives as it was sent, one that is too large is refused with a reason.
func TestSnapshot(t *testing.T) {
	a, b := newSide(t, 1, nil), newSide(t, 2, nil)
	know(a, b)
	snap := &raftpb.Message{Type: raftpb.MsgSnap.Enum(), From: new(uint64(1)), To: new(uint64(2)), Snapshot: &raftpb.Snapshot{}}
	for _, size := range []int{0, 1, chunkSize, 3*chunkSize + 17} {
		state := make([]byte, size)
		for i := range state {
			state[i] = byte(i * 7)
		}
		if err := a.SendSnapshot(snap, bytes.NewReader(state)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b.state, state) {
			t.Errorf("a state of %d bytes arrives as one of %d", size, len(b.state))
		}
	}
	if err := a.SendSnapshot(snap, bytes.NewReader(make([]byte, 9<<20))); err == nil {
		t.Error("a snapshot over the limit was taken")
	}
	failing := io.MultiReader(bytes.NewReader(make([]byte, 1000)), &failingReader{})
	if err := a.SendSnapshot(snap, failing); err == nil {
		t.Error("a snapshot that could not be read was sent")
	}
}

type failingReader struct{}

func (*failingReader) Read([]byte) (int, error) { return 0, errors.New("the disk fails") }

// TestRequest: a request is answered.
func TestRequest(t *testing.T) {
	b := newSide(t, 2, nil)
	answer, err := Request(t.Context(), b.addr, nil, []byte("x"))
	if err != nil || string(answer) != "answer to x" {
		t.Errorf("%q, %v", answer, err)
	}
}

// TestTLS: members that are given certificates use them, and one without cannot connect.
func TestTLS(t *testing.T) {
	config := certificate(t)
	secure := func(c *Config) { c.TLS = config }
	a, b := newSide(t, 1, secure), newSide(t, 2, secure)
	know(a, b)
	arrives(t, a, b)
	if _, err := Request(t.Context(), b.addr, nil, nil); err == nil {
		t.Error("a connection without TLS is accepted")
	}
	if answer, err := Request(t.Context(), b.addr, config, []byte("x")); err != nil || len(answer) == 0 {
		t.Errorf("%q, %v", answer, err)
	}
}

// certificate makes a configuration in which both sides prove who they are.
func certificate(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}
}

// TestForged: a member cannot speak for another.
func TestForged(t *testing.T) {
	b := newSide(t, 2, nil)
	own := [16]byte{1}
	c, err := Dial(t.Context(), b.addr, nil, hello{Format: 1, Kind: kindMessages, Cluster: own[:], From: 1, To: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	frame, err := appendMessage(nil, message(3, 2, 7))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write(frame)
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err = c.Read(make([]byte, 1)); err == nil || len(b.messages) > 0 {
		t.Errorf("a message from another member is accepted: %v", err)
	}
}

// FuzzFrames: whatever a member sends, it is refused or read, without taking more memory than has come.
func FuzzFrames(f *testing.F) {
	good, err := appendMessage(nil, message(1, 2, 7))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(frameOf(framePing, nil))
	f.Add([]byte{255, 255, 255, 63, 1})
	l := New(Config{Self: 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bufio.NewReader(bytes.NewReader(data))
		for {
			typ, payload, err := readFrame(r)
			if err != nil {
				return
			}
			if len(payload) > len(data) {
				t.Fatalf("a frame of %d bytes in %d", len(payload), len(data))
			}
			if typ != frameMessage {
				continue
			}
			if m, err := l.message(payload, 1); err == nil && (m.GetFrom() != 1 || m.GetTo() != 2) {
				t.Fatal(fmt.Sprint("accepted ", m))
			}
		}
	})
}
