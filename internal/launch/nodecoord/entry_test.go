// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/launch/launchcore"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
)

// credentials are those of a launcher with a token.
func credentials(t *testing.T, token jobtoken.Token) *jobtls.Credentials {
	t.Helper()
	c, err := jobtls.FromToken(token, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newToken(t *testing.T) jobtoken.Token {
	t.Helper()
	token, err := jobtoken.New(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// told collects what a host says of the clients that it has refused.
type told struct {
	mu  sync.Mutex
	all map[Refusal]int
}

func (r *told) add(why Refusal, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[why]++
}

func (r *told) count(why Refusal) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[why]
}

// secureHost is a host with a token.
func secureHost(t *testing.T, token jobtoken.Token) (*Host, *told) {
	t.Helper()
	r := &told{all: map[Refusal]int{}}
	return newHost(t, Config{
		RunID: "job", Rules: Rules{MinNodes: 99, MaxNodes: 99}, Credentials: credentials(t, token), OnRefused: r.add,
	}), r
}

// secure dials a host as a launcher with these credentials does; change may alter the TLS.
func secure(t *testing.T, addr string, c *jobtls.Credentials, change func(*tls.Config)) (*tls.Conn, error) {
	t.Helper()
	config := c.Client(jobtls.Launch, "127.0.0.1")
	if change != nil {
		change(config)
	}
	raw, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	conn := tls.Client(raw, config)
	return conn, conn.Handshake()
}

// proving is the request of a launcher that knows the token.
func proving(t *testing.T, conn *tls.Conn, c *jobtls.Credentials) Message {
	t.Helper()
	m := joining("job")
	var err error
	if m.Join.Proof, err = c.Prove(conn.ConnectionState()); err == nil {
		m.Join.Request, err = c.Request()
	}
	if err != nil {
		t.Fatal(err)
	}
	m.Join.Clock = time.Now().Unix()
	return m
}

// unverified is the TLS of a stranger, who believes every host.
func unverified(c *tls.Config) { c.VerifyConnection = nil }

// TestJoinWithToken: a launcher with the token is welcomed and gets the certificate of its node.
func TestJoinWithToken(t *testing.T) {
	t.Parallel()
	token := newToken(t)
	h, _ := secureHost(t, token)
	for range 2 {
		c := credentials(t, token)
		conn, err := secure(t, h.Addr(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		w := NewWire(conn, time.Hour)
		send(t, w, proving(t, conn, c))
		m := until(t, w, func(m Message) bool { return m.Welcome })
		if err = c.Admitted(m.Leaf); err != nil {
			t.Error(err)
		}
	}
}

// TestStrangersWithoutToken: a client that does not know the secret learns nothing but one sentence, and changes nothing, whatever it
// does; the host says of each kind of stranger once that it was refused.
func TestStrangersWithoutToken(t *testing.T) {
	t.Parallel()
	token, foreign := newToken(t), newToken(t)
	h, said := secureHost(t, token)
	own := credentials(t, token)
	first, err := secure(t, h.Addr(), own, nil)
	if err != nil {
		t.Fatal(err)
	}
	node := NewWire(first, time.Hour)
	send(t, node, proving(t, first, own))
	until(t, node, func(m Message) bool { return m.Waiting != nil })
	evil := []Message{
		{Examine: &Question{ID: 1}},
		{Examine: &Question{ID: 2, What: Presence}},
		{Failed: &Failed{Attempt: -1, Failure: launchcore.Failure{Sentence: "ended by a stranger"}}},
		{Leave: &Leave{Reason: "goes"}},
	}
	for name, join := range map[string]func(conn *tls.Conn) Message{
		"no proof":               func(*tls.Conn) Message { return joining("job") },
		"proof of another token": func(conn *tls.Conn) Message { return proving(t, conn, credentials(t, foreign)) },
		"proof of another connection": func(*tls.Conn) Message {
			other, failed := secure(t, h.Addr(), own, nil)
			if failed != nil {
				t.Fatal(failed)
			}
			return proving(t, other, own)
		},
	} {
		conn, failed := secure(t, h.Addr(), credentials(t, foreign), unverified)
		if failed != nil {
			t.Fatal(name, failed)
		}
		w := NewWire(conn, time.Hour)
		send(t, w, append(evil, join(conn))...)
		if got, want := received(conn), answers(refusal); got != want {
			t.Errorf("%s: a stranger receives\n%s\nwant\n%s", name, got, want)
		}
	}
	if _, err = secure(t, h.Addr(), credentials(t, foreign), nil); err == nil {
		t.Error("a launcher with another token believes this host")
	}
	plain, err := net.Dial("tcp", h.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = plain.Close() }()
	send(t, NewWire(plain, time.Hour), joining("job"))
	if got, want := received(plain), strings.TrimPrefix(answers(plainRefusal), string(greeting)); got != want {
		t.Errorf("a launcher without TLS receives\n%s\nwant\n%s", got, want)
	}
	for deadline := time.Now().Add(time.Minute); said.count(WithoutTLS) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if said.count(OtherToken) != 1 || said.count(WithoutTLS) != 1 || said.count(Unidentified) != 0 {
		t.Errorf("the host says %v", said.all)
	}
	// The node was asked nothing, and no other has joined: the next one is the second.
	other := credentials(t, token)
	second, err := secure(t, h.Addr(), other, nil)
	if err != nil {
		t.Fatal(err)
	}
	send(t, NewWire(second, time.Hour), proving(t, second, other))
	if m, err := node.Receive(); err != nil || m.Waiting == nil || m.Waiting.Here != 2 {
		t.Errorf("the node receives %+v, %v", m, err)
	}
}

// received is all that a client is sent until its connection ends.
func received(c net.Conn) string {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	var all strings.Builder
	for lines := bufio.NewScanner(c); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
	}
	return all.String()
}

// answers is what a client is sent that is refused.
func answers(d Dismiss) string {
	b, err := json.Marshal(Message{Dismiss: &d})
	if err != nil {
		panic(err)
	}
	return string(greeting) + string(b) + "\n"
}

// recorder passes a connection on to a host, records it, and changes a byte of what the client sends.
type recorder struct {
	addr string
	mu   sync.Mutex
	sent []byte
}

// record listens for one connection.
func record(t *testing.T, to string, change int) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{addr: l.Addr().String()}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		client, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = client.Close() }()
		host, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer func() { _ = host.Close() }()
		back := make(chan struct{})
		go func() { defer close(back); _, _ = io.Copy(client, host); _ = client.Close() }()
		r.pass(client, host, change)
		_ = host.Close()
		<-back
	}()
	return r
}

func (r *recorder) pass(from io.Reader, to io.Writer, change int) {
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		if at := change - len(r.sent); change >= 0 && at >= 0 && at < n {
			buf[at] ^= 1
		}
		r.sent = append(r.sent, buf[:n]...)
		r.mu.Unlock()
		if _, failed := to.Write(buf[:n]); failed != nil || err != nil {
			return
		}
	}
}

func (r *recorder) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.sent)
}

// joinThrough joins over a recorder and reports whether the host has taken the node.
func joinThrough(t *testing.T, token jobtoken.Token, r *recorder) bool {
	t.Helper()
	c := credentials(t, token)
	conn, err := secure(t, r.addr, c, nil)
	if err != nil {
		return false
	}
	w := NewWire(conn, time.Minute)
	_ = w.Send(proving(t, conn, c))
	for {
		m, err := w.Receive()
		if err != nil || m.Dismiss != nil {
			return false
		}
		if m.Welcome {
			return c.Admitted(m.Leaf) == nil
		}
	}
}

// TestRecordedJoin: who records a join reads nothing of it, cannot use it again, and cannot change it.
func TestRecordedJoin(t *testing.T) {
	t.Parallel()
	token := newToken(t)
	h, _ := secureHost(t, token)
	r := record(t, h.Addr(), -1)
	if !joinThrough(t, token, r) {
		t.Fatal("a node cannot join through a proxy")
	}
	recorded := r.bytes()
	for _, text := range []string{"run_id", "join", "proof", token.ID(), "default"} {
		if bytes.Contains(recorded, []byte(text)) {
			t.Errorf("%q is sent in plain text", text)
		}
	}
	replay, err := net.Dial("tcp", h.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = replay.Close() }()
	if _, err = replay.Write(recorded); err != nil {
		t.Fatal(err)
	}
	_ = replay.SetReadDeadline(time.Now().Add(time.Minute))
	answer, _ := io.ReadAll(replay)
	if bytes.Contains(answer, []byte("alive")) || bytes.Contains(answer, []byte("welcome")) {
		t.Errorf("a replayed join is answered with %q", answer)
	}
	for _, at := range []int{43, len(recorded) / 2, len(recorded) - 40} {
		if joinThrough(t, token, record(t, h.Addr(), at)) {
			t.Errorf("byte %d of the join was changed, and the node has joined", at)
		}
	}
}

// TestOtherClock: a launcher whose clock is two days off is told so, and others are not.
func TestOtherClock(t *testing.T) {
	t.Parallel()
	token := newToken(t)
	h, said := secureHost(t, token)
	for off, want := range map[time.Duration]string{
		-48 * time.Hour:  "the clock of node is 48h0m0s behind that of the launcher that hosts the rendezvous",
		48 * time.Hour:   "the clock of node is 48h0m0s ahead of that of the launcher",
		50 * time.Minute: "",
	} {
		c := credentials(t, token)
		conn, err := secure(t, h.Addr(), c, nil)
		if err != nil {
			t.Fatal(err)
		}
		w := NewWire(conn, time.Hour)
		request := proving(t, conn, c)
		request.Join.Clock = time.Now().Add(off + 500*time.Millisecond).Unix()
		send(t, w, request)
		m := until(t, w, func(m Message) bool { return m.Welcome || m.Dismiss != nil })
		if m.Welcome != (want == "") || want != "" && !strings.Contains(m.Dismiss.Sentence, want[:30]) {
			t.Errorf("%v: %+v", off, m.Dismiss)
		}
	}
	if said.count(OtherClock) != 1 {
		t.Errorf("the host says %v", said.all)
	}
}

// TestHandshakeIsBounded: a client cannot send more than the handshake and the request need, nor take longer.
func TestHandshakeIsBounded(t *testing.T) {
	t.Parallel()
	h, said := secureHost(t, newToken(t))
	c, err := net.Dial("tcp", h.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	// A record of a handshake that announces a message of 16 MiB, again and again.
	junk := append([]byte{jobtls.Handshake, 3, 1, 0x40, 0}, bytes.Repeat([]byte{1, 0xff, 0xff, 0xff}, 1<<12)...)
	for sent := 0; sent < 1<<20; sent += len(junk) {
		if _, err = c.Write(junk); err != nil {
			break
		}
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err = io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Errorf("the connection stays open: %v", err)
	}
	if said.count(Unidentified) != 1 {
		t.Errorf("the host says %v", said.all)
	}
}

// TestClientsThatGo: a client may go at any moment before it has joined: nothing comes of it, and nothing is said of it.
func TestClientsThatGo(t *testing.T) {
	t.Parallel()
	token := newToken(t)
	h, said := secureHost(t, token)
	r := record(t, h.Addr(), -1)
	if !joinThrough(t, token, r) {
		t.Fatal("a node cannot join through a proxy")
	}
	recorded := r.bytes()
	for n := 0; n < len(recorded); n += 1 + len(recorded)/50 {
		c, err := net.Dial("tcp", h.Addr())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(recorded[:n])
		_ = c.(*net.TCPConn).CloseWrite() //nolint:errcheck // it was dialled with "tcp"
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	}
	if !joinThrough(t, token, record(t, h.Addr(), -1)) {
		t.Error("a node cannot join any more")
	}
	if said.count(OtherToken)+said.count(WithoutTLS) > 0 {
		t.Errorf("the host says %v", said.all)
	}
}

// TestPlainHostNamesTLS: a host without credentials says that a client has come with TLS.
func TestPlainHostNamesTLS(t *testing.T) {
	t.Parallel()
	came := make(chan Refusal, 8)
	h := newHost(t, Config{RunID: "job", Rules: Rules{MinNodes: 9, MaxNodes: 9}, OnRefused: func(why Refusal, _ string) { came <- why }})
	if _, err := secure(t, h.Addr(), credentials(t, newToken(t)), nil); err == nil {
		t.Error("a host without credentials speaks TLS")
	}
	if why := <-came; why != WithTLS {
		t.Errorf("it says %v", why)
	}
}

// says is a connection on which a client has said something, and says nothing more.
type says struct {
	net.Conn
	text *bytes.Reader
}

func (c says) Read(b []byte) (int, error)      { return c.text.Read(b) }
func (c says) SetReadDeadline(time.Time) error { return nil }

// FuzzHello: whatever a stranger says, the host reads at most [MaxJoin] bytes of it, and what it takes for a request is one.
func FuzzHello(f *testing.F) {
	proof := &Join{Proof: []byte{1}, Request: []byte{2}, Clock: 3}
	for _, m := range []Message{joining("job"), {Alive: true}, {Examine: &Question{ID: 1}}, {Join: proof}} {
		b, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(b, '\n'))
		f.Add(append(append(bytes.Clone(greeting), b...), "\nrest"...))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c := says{text: bytes.NewReader(text)}
		m, rest, _, err := request(c, time.Time{})
		if read := len(text) - c.text.Len(); read > MaxJoin {
			t.Errorf("%d bytes were read", read)
		}
		if (m == nil) == (err == nil) || m == nil && len(rest) > 0 {
			t.Errorf("%+v, %q, %v", m, rest, err)
		}
	})
}
