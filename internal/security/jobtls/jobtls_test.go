// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobtls

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobcert"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
)

const day = 24 * time.Hour

// clock is a time that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)} }

func newToken(t *testing.T, expires time.Time) jobtoken.Token {
	t.Helper()
	token, err := jobtoken.New(expires)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func ofToken(t *testing.T, token jobtoken.Token, c *clock) *Credentials {
	t.Helper()
	creds, err := FromToken(token, c.read)
	if err != nil {
		t.Fatal(err)
	}
	return creds
}

// link is a connection after both sides have tried the handshake.
type link struct{ client, server *tls.Conn }

// wire is a connection. It has buffers, unlike a pipe: both sides may have something to say when a handshake fails.
func wire(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial("tcp", l.Addr().String()); err == nil {
		server, err = l.Accept()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// meet connects a client and a server.
func meet(t *testing.T, client, server *tls.Config) (l link, clientErr, serverErr error) {
	t.Helper()
	a, b := wire(t)
	return meetOver(a, b, client, server)
}

func meetOver(a, b net.Conn, client, server *tls.Config) (l link, clientErr, serverErr error) {
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
	}
	l = link{tls.Client(a, client), tls.Server(b, server)}
	done := make(chan error, 1)
	go func() {
		err := l.server.Handshake()
		if err == nil { // TLS 1.3: the client learns by its first read whether it was accepted
			_, err = l.server.Write([]byte{1})
		} else {
			_ = b.Close()
		}
		done <- err
	}()
	if clientErr = l.client.Handshake(); clientErr == nil {
		_, clientErr = l.client.Read(make([]byte, 1))
	} else {
		_ = a.Close()
	}
	return l, clientErr, <-done
}

// admit gives a launcher the certificate of a node.
func admit(t *testing.T, host, node *Credentials, number int) {
	t.Helper()
	request, err := node.Request()
	if err != nil {
		t.Fatal(err)
	}
	der, err := host.Admit(request, number)
	if err == nil {
		err = node.Admitted(der)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestJoin: a launcher with the token of the job is let in by its proof and gets the certificate of its node, with which it uses the
// other wires. One without a certificate does not.
func TestJoin(t *testing.T) {
	t.Parallel()
	at := newClock()
	token := newToken(t, time.Time{})
	host, node := ofToken(t, token, at), ofToken(t, token, at)
	l, clientErr, serverErr := meet(t, node.Client(Launch, "h"), host.Server(Launch))
	if clientErr != nil || serverErr != nil {
		t.Fatal(clientErr, serverErr)
	}
	proof, err := node.Prove(l.client.ConnectionState())
	if err != nil || !host.Proven(l.server.ConnectionState(), proof) {
		t.Errorf("the proof is not accepted: %v", err)
	}
	if s := l.server.ConnectionState(); s.Version != tls.VersionTLS13 || s.DidResume {
		t.Errorf("version %x, resumed %v", s.Version, s.DidResume)
	}
	if _, clientErr, serverErr = meet(t, node.Client(Store, "h"), host.Server(Store)); clientErr == nil || serverErr == nil {
		t.Errorf("a launcher without a certificate uses the store: %v, %v", clientErr, serverErr)
	}
	admit(t, host, node, 3)
	l, clientErr, serverErr = meet(t, node.Client(Store, "h"), host.Server(Store))
	if clientErr != nil || serverErr != nil {
		t.Fatal(clientErr, serverErr)
	}
	name, err := jobcert.ParseName(l.server.ConnectionState().PeerCertificates[0].URIs[0].String())
	if err != nil || name != (jobcert.Name{Job: token.ID(), Role: jobcert.Node, Node: 3}) {
		t.Errorf("the client is %+v, %v", name, err)
	}
	// Another launcher takes the place of the host: it has the same authority.
	_, clientErr, serverErr = meet(t, node.Client(Store, "h"), ofToken(t, token, at).Server(Store))
	if clientErr != nil || serverErr != nil {
		t.Errorf("with a new host: %v, %v", clientErr, serverErr)
	}
}

// TestStoreIsForLaunchers: the certificates of ranks and tools, which launchers issue, do not open the store. A launcher that joins no host
// issues its own.
func TestStoreIsForLaunchers(t *testing.T) {
	t.Parallel()
	at := newClock()
	token := newToken(t, time.Time{})
	host, node := ofToken(t, token, at), ofToken(t, token, at)
	if err := node.AdmitSelf(3); err != nil {
		t.Fatal(err)
	}
	if _, clientErr, serverErr := meet(t, node.Client(Store, "h"), host.Server(Store)); clientErr != nil || serverErr != nil {
		t.Errorf("a launcher: %v, %v", clientErr, serverErr)
	}
	own := node.mu.node
	issuer, err := jobcert.NewNode(own.cert.Certificate[0], own.key)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []jobcert.Name{
		{Job: token.ID(), Role: jobcert.Rank, Node: 3, Rank: 1}, {Job: token.ID(), Role: jobcert.Tool, Node: 3, Tool: "rpc"},
	} {
		der, err := issuer.Issue(name, own.key.Public(), at.read())
		if err != nil {
			t.Fatal(err)
		}
		config := node.Client(Store, "h")
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{Certificate: [][]byte{der, own.cert.Certificate[0]}, PrivateKey: own.key}, nil
		}
		if _, _, serverErr := meet(t, config, host.Server(Store)); !errors.Is(serverErr, jobcert.ErrRole) {
			t.Errorf("%s: %v", name, serverErr)
		}
	}
}

// TestProofIsBound: a proof is good for one connection and one token only, so one that was recorded or passed on is worth nothing.
func TestProofIsBound(t *testing.T) {
	t.Parallel()
	at := newClock()
	token := newToken(t, time.Time{})
	host, node := ofToken(t, token, at), ofToken(t, token, at)
	first, _, _ := meet(t, node.Client(Launch, "h"), host.Server(Launch))
	second, _, _ := meet(t, node.Client(Launch, "h"), host.Server(Launch))
	proof, err := node.Prove(first.client.ConnectionState())
	if err != nil {
		t.Fatal(err)
	}
	if host.Proven(second.server.ConnectionState(), proof) {
		t.Error("the proof of one connection is accepted on another")
	}
	for _, p := range [][]byte{nil, {}, make([]byte, 32), proof[:31], append(proof[:32:32], 0)} {
		if host.Proven(first.server.ConnectionState(), p) {
			t.Errorf("%x is accepted", p)
		}
	}
	forged, err := ofToken(t, newToken(t, time.Time{}), at).Prove(first.client.ConnectionState())
	if err != nil || host.Proven(first.server.ConnectionState(), forged) {
		t.Errorf("the proof of another token is accepted: %v", err)
	}
	// A man in the middle has a connection to each side: he cannot end the one of the node, nor use its proof on his own.
	fake := ofToken(t, newToken(t, time.Time{}), at)
	if _, clientErr, _ := meet(t, node.Client(Launch, "h"), fake.Server(Launch)); !errors.Is(clientErr, jobcert.ErrForeign) {
		t.Errorf("a node believes a host with another token: %v", clientErr)
	}
}

// TestRefused: what does not fit is refused in the handshake, by the side that knows, with an error that says why.
func TestRefused(t *testing.T) {
	t.Parallel()
	at := newClock()
	token := newToken(t, time.Time{})
	host, node, other := ofToken(t, token, at), ofToken(t, token, at), ofToken(t, newToken(t, time.Time{}), at)
	admit(t, host, node, 1)
	admit(t, other, other, 1)
	later := func(d time.Duration) *Credentials { return ofToken(t, token, &clock{now: at.read().Add(d)}) }
	with := func(config *tls.Config, change func(*tls.Config)) *tls.Config { change(config); return config }
	member := node.Client(Store, "h")
	for name, c := range map[string]struct {
		client, server *tls.Config
		want           error // of the client, nil: any, of the server
	}{
		"another token":             {other.Client(Launch, "h"), host.Server(Launch), jobcert.ErrForeign},
		"the client's clock behind": {later(-2*day).Client(Launch, "h"), host.Server(Launch), jobcert.ErrClock},
		"another wire":              {node.Client(Store, "h"), host.Server(Launch), nil},
		"no wire": {
			with(node.Client(Launch, "h"), func(c *tls.Config) { c.NextProtos, c.VerifyConnection = nil, nil }), host.Server(Launch), nil,
		},
		"TLS 1.2": {
			with(node.Client(Launch, "h"), func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }),
			host.Server(Launch), nil,
		},
		"a node as the host": {
			member, with(node.Server(Store), func(c *tls.Config) {
				c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return node.current(&node.mu.node) }
			}), jobcert.ErrRole,
		},
		"a foreign node": {
			with(other.Client(Store, "h"), func(c *tls.Config) { c.VerifyConnection = nil }), host.Server(Store), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, clientErr, serverErr := meet(t, c.client, c.server)
			if clientErr == nil || serverErr == nil || c.want != nil && !errors.Is(clientErr, c.want) {
				t.Errorf("client %v, server %v", clientErr, serverErr)
			}
		})
	}
}

// TestSixtyDays: the host and a node of a job of 60 days have valid certificates every day, without a new handshake of the launchers.
func TestSixtyDays(t *testing.T) {
	t.Parallel()
	at := newClock()
	token := newToken(t, time.Time{})
	host, node := ofToken(t, token, at), ofToken(t, token, at)
	admit(t, host, node, 1)
	serials := map[string]bool{}
	for n := range 60 {
		l, clientErr, serverErr := meet(t, node.Client(Store, "h"), host.Server(Store))
		if clientErr != nil || serverErr != nil {
			t.Fatalf("on day %d: %v, %v", n, clientErr, serverErr)
		}
		serials[l.server.ConnectionState().PeerCertificates[0].SerialNumber.String()] = true
		at.add(day)
	}
	if len(serials) != 3 {
		t.Errorf("the node had %d certificates", len(serials))
	}
}

// TestExpiredToken: when the token has expired, its hosts are refused.
func TestExpiredToken(t *testing.T) {
	t.Parallel()
	at := newClock()
	token := newToken(t, at.read().Add(day))
	host, node := ofToken(t, token, at), ofToken(t, token, at)
	if _, clientErr, serverErr := meet(t, node.Client(Launch, "h"), host.Server(Launch)); clientErr != nil || serverErr != nil {
		t.Fatal(clientErr, serverErr)
	}
	at.add(day + time.Second)
	if _, clientErr, _ := meet(t, node.Client(Launch, "h"), host.Server(Launch)); !errors.Is(clientErr, jobcert.ErrExpired) {
		t.Errorf("the client says %v", clientErr)
	}
}

// tap is a connection whose bytes are recorded, and one of them changed.
type tap struct {
	net.Conn
	seen   *bytes.Buffer
	change int // the number of the byte, -1 for none
}

func (c *tap) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	if at := c.change - c.seen.Len(); c.change >= 0 && at >= 0 && at < len(b) {
		b[at] ^= 1
	}
	c.seen.Write(b)
	return c.Conn.Write(b)
}

// TestInTransit: nothing that is sent can be read by who records it, and a changed byte ends the connection.
func TestInTransit(t *testing.T) {
	t.Parallel()
	at := newClock()
	token := newToken(t, time.Time{})
	host, node := ofToken(t, token, at), ofToken(t, token, at)
	admit(t, host, node, 1)
	const secret = "a value that the job stores: 4711"
	send := func(change int) (got string, recorded *bytes.Buffer, err error) {
		a, b := wire(t)
		_ = b.SetDeadline(time.Now().Add(10 * time.Second))
		recorded = &bytes.Buffer{}
		l, clientErr, serverErr := meetOver(&tap{a, recorded, change}, b, node.Client(Store, "h"), host.Server(Store))
		if err = errors.Join(clientErr, serverErr); err != nil {
			return "", recorded, err
		}
		go func() { _, _ = l.client.Write([]byte(secret)) }()
		text := make([]byte, len(secret))
		_, err = io.ReadFull(l.server, text)
		return string(text), recorded, err
	}
	got, recorded, err := send(-1)
	if err != nil || got != secret {
		t.Fatalf("%q, %v", got, err)
	}
	for _, text := range []string{secret, token.ID(), "cohort://"} {
		if bytes.Contains(recorded.Bytes(), []byte(text)) {
			t.Errorf("%q was sent in plain text", text)
		}
	}
	for n := 0; n < recorded.Len(); n += 1 + recorded.Len()/16 {
		if got, _, failed := send(n); failed == nil && got == secret {
			if n > 5 { // the version of the first record is not authenticated by TLS, and means nothing
				t.Errorf("byte %d was changed, and it was not noticed", n)
			}
		} else if strings.Contains(got, "4711") && got != secret {
			t.Errorf("byte %d was changed, and %q arrived", n, got)
		}
	}
	changed := recorded.Len() - 3
	if _, _, err = send(changed); err == nil {
		t.Error("a changed byte of the message was not noticed")
	}
}
