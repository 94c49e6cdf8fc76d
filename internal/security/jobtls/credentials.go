// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package jobtls makes TLS of the credentials of a job: TLS 1.3 in which both sides know that the other is of the same job. The
// credentials come from the job's token, or are files of the user's own PKI.
//
// With a token, a launcher that joins has no certificate yet. It accepts only a host whose certificate the authority of the token
// has issued, then proves over that connection that it knows the secret ([Credentials.Prove]), and gets its certificate.
// On all other wires, and with certificates of the user, both sides show one in the handshake.
package jobtls

import (
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobcert"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
)

// The wires, as the client names them in the handshake (ALPN): a connection for one cannot be used for another.
const (
	// Launch is that of the launchers, Store that of their gateways to the store of the job.
	Launch = "cohort-launch/1"
	Store  = "cohort-store/1"
)

// Handshake is the first byte of a client that begins with TLS. None of the plain wires begins with it.
const Handshake = 0x16

// curves are those of FIPS 140-3 in Go, those that resist quantum computers first.
var curves = []tls.CurveID{tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.CurveP256}

// errWire says that the client has not named the wire.
var errWire = errors.New("jobtls: the other side has not asked for this protocol")

// Credentials are what a process shows the others of its job, and how it recognises them.
type Credentials struct {
	now   func() time.Time
	files *files // of the user's PKI, or nil
	// Of a token.
	id   string
	root *jobcert.Authority
	join [32]byte
	mu   struct {
		sync.Mutex
		host, node issued
	}
}

// issued is a certificate of the job that this process has, and renews.
type issued struct {
	name    jobcert.Name
	key     *ecdsa.PrivateKey
	cert    *tls.Certificate // nil: none yet
	renewal jobcert.Renewal
}

// FromToken makes the credentials of a launcher that has the token of the job. now is the clock.
func FromToken(t jobtoken.Token, now func() time.Time) (*Credentials, error) {
	root, err := jobcert.NewRoot(t.Derive("authority"), t.ID(), t.Expires())
	if err != nil {
		return nil, err
	}
	c := &Credentials{now: now, id: t.ID(), root: root, join: t.Derive("join")}
	c.mu.host.name = jobcert.Name{Job: t.ID(), Role: jobcert.Host}
	return c, nil
}

// ID names the token; "" for certificates of the user.
func (c *Credentials) ID() string { return c.id }

// Server is for the server of a wire. The clients of [Launch] have no certificate of a token's authority yet: see [Credentials.Proven].
// Those of [Store] are launchers: ranks and tools reach the store through the gateway of theirs.
func (c *Credentials) Server(wire string) *tls.Config {
	config := base(wire)
	config.ClientAuth = tls.RequireAnyClientCert // VerifyConnection checks it
	verify := c.verifyLauncher
	switch {
	case c.files != nil:
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.files.certificate(), nil }
		verify = func(s tls.ConnectionState) error { return c.files.verify(s, "", c.now()) }
	case wire == Launch:
		config.ClientAuth = tls.NoClientCert
		verify = func(tls.ConnectionState) error { return nil }
	}
	if c.files == nil {
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(&c.mu.host) }
	}
	config.VerifyConnection = onWire(wire, verify)
	return config
}

// Client is for a client of a wire whose server is the host of the job, at an address.
func (c *Credentials) Client(wire, host string) *tls.Config {
	config := base(wire)
	config.InsecureSkipVerify = true // VerifyConnection checks the certificate, which has no host name
	if c.files != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.files.certificate(), nil }
		config.VerifyConnection = onWire(wire, func(s tls.ConnectionState) error { return c.files.verify(s, host, c.now()) })
		return config
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.current(&c.mu.node) }
	config.VerifyConnection = onWire(wire, func(s tls.ConnectionState) error {
		return c.verifyRole(s.PeerCertificates, jobcert.Host)
	})
	return config
}

// base is what both sides have in common. Sessions are not resumed: that saves little, and each connection checks a certificate.
func base(wire string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, CurvePreferences: slices.Clone(curves), NextProtos: []string{wire}, SessionTicketsDisabled: true,
	}
}

// onWire refuses connections for another wire, or for none.
func onWire(wire string, verify func(tls.ConnectionState) error) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if s.NegotiatedProtocol != wire {
			return errWire
		}
		return verify(s)
	}
}

// verifyLauncher accepts the launchers of the job.
func (c *Credentials) verifyLauncher(s tls.ConnectionState) error {
	return c.verifyRole(s.PeerCertificates, jobcert.Host, jobcert.Node)
}

func (c *Credentials) verifyRole(chain []*x509.Certificate, roles ...jobcert.Role) error {
	name, err := jobcert.Verify(c.root.Certificate(), chain, c.now())
	if err == nil && !slices.Contains(roles, name.Role) {
		err = fmt.Errorf("%w: it is that of a %s", jobcert.ErrRole, name.Role)
	}
	return err
}

// current returns a certificate of this process, renewed when it is time; one that was not issued yet is issued to the host only.
func (c *Credentials) current(i *issued) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	switch {
	case i.cert == nil && i.name.Role != jobcert.Host:
		return &tls.Certificate{}, nil // the server decides what that means
	case i.cert != nil && !i.renewal.Due(now):
		return i.cert, nil
	}
	err := c.issueLocked(i, now)
	if err != nil && i.cert == nil {
		return nil, err
	}
	if err != nil {
		i.renewal.Failed(now)
	}
	return i.cert, nil
}

func (c *Credentials) issueLocked(i *issued, now time.Time) (err error) {
	if i.key == nil {
		if i.key, err = jobcert.NewKey(); err != nil {
			return err
		}
	}
	der, err := c.root.Issue(i.name, i.key.Public(), now)
	if err != nil {
		return err
	}
	return i.take(der)
}

// take makes a certificate that of the process.
func (i *issued) take(der []byte) error {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("jobtls: %w", err)
	}
	i.cert = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: i.key, Leaf: leaf}
	i.renewal = jobcert.NewRenewal(leaf)
	return nil
}

// Request asks the host for the certificate of this node; nil if it needs none.
func (c *Credentials) Request() ([]byte, error) {
	if c.files != nil {
		return nil, nil
	}
	key, err := jobcert.NewKey()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.node = issued{key: key}
	return jobcert.Request(key)
}

// Admit answers a request of a node that has the number node; nil if it needs none.
func (c *Credentials) Admit(request []byte, node int) ([]byte, error) {
	if c.files != nil {
		return nil, nil
	}
	key, err := jobcert.KeyOf(request)
	if err != nil {
		return nil, err
	}
	return c.root.Issue(jobcert.Name{Job: c.id, Role: jobcert.Node, Node: node}, key, c.now())
}

// Admitted takes the host's answer to Request.
func (c *Credentials) Admitted(der []byte) error {
	if c.files != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	node, err := jobcert.NewNode(der, c.mu.node.key)
	if err == nil {
		c.mu.node.name, err = jobcert.Verify(c.root.Certificate(), []*x509.Certificate{node.Certificate()}, c.now())
	}
	if err != nil {
		return fmt.Errorf("the certificate that the host has issued: %w", err)
	}
	return c.mu.node.take(der)
}

// AdmitSelf issues this process the certificate of a node. It is for launchers that share a store and do not join a host: who has the token
// may do so.
func (c *Credentials) AdmitSelf(node int) error {
	request, err := c.Request()
	if err != nil || c.files != nil {
		return err
	}
	der, err := c.Admit(request, node)
	if err != nil {
		return err
	}
	return c.Admitted(der)
}

// proofLabel names what the proof is for, in the exporter of the connection (RFC 8446, section 7.5).
const proofLabel = "EXPORTER-cohort-join"

// Prove returns what shows the host that this process knows the secret of the token: it is good for this connection only. nil if the
// handshake has shown it.
func (c *Credentials) Prove(s tls.ConnectionState) ([]byte, error) {
	if c.files != nil {
		return nil, nil
	}
	binding, err := s.ExportKeyingMaterial(proofLabel, nil, 32)
	if err != nil {
		return nil, fmt.Errorf("jobtls: %w", err)
	}
	mac := hmac.New(sha256.New, c.join[:])
	_, _ = mac.Write(binding)
	return mac.Sum(nil), nil
}

// Proven reports whether the client at the other end of a connection has proved that it is of the job.
func (c *Credentials) Proven(s tls.ConnectionState, proof []byte) bool {
	if c.files != nil {
		return true // a connection needs a certificate
	}
	want, err := c.Prove(s)
	return err == nil && hmac.Equal(want, proof)
}
