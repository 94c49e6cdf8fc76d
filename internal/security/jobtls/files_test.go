// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobtls

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobcert"
)

// pki is a certificate authority of a user.
type pki struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{t: t, dir: t.TempDir()}
	p.key = p.newKey()
	p.cert = p.sign(&x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0),
	}, p.key)
	p.write("ca.pem", "CERTIFICATE", p.cert.Raw)
	return p
}

func (p *pki) newKey() *ecdsa.PrivateKey {
	p.t.Helper()
	key, err := jobcert.NewKey()
	if err != nil {
		p.t.Fatal(err)
	}
	return key
}

func (p *pki) sign(template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	p.t.Helper()
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	parent := p.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		p.t.Fatal(err)
	}
	return cert
}

func (p *pki) write(name, kind string, der []byte) {
	p.t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(filepath.Join(p.dir, name), text, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// files writes a certificate for a launcher.
func (p *pki) files(name string, template x509.Certificate, at time.Time) Files {
	p.t.Helper()
	key := p.newKey()
	template.NotBefore, template.NotAfter = at.Add(-time.Hour), at.Add(day)
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	p.write(name+".pem", "CERTIFICATE", p.sign(&template, key).Raw)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(name+".key", "PRIVATE KEY", der)
	return Files{filepath.Join(p.dir, name+".pem"), filepath.Join(p.dir, name+".key"), filepath.Join(p.dir, "ca.pem")}
}

func ofFiles(t *testing.T, f Files, c *clock, reported *[]error) *Credentials {
	t.Helper()
	creds, err := FromFiles(f, c.read, func(err error) { *reported = append(*reported, err) })
	if err != nil {
		t.Fatal(err)
	}
	return creds
}

func spiffe(id string) x509.Certificate {
	u, err := url.Parse(id)
	if err != nil {
		panic(err)
	}
	return x509.Certificate{URIs: []*url.URL{u}}
}

// TestOwnCertificates: with certificates of the user's PKI both sides show one, the server's is for its address, and SPIFFE IDs are those
// of the job.
func TestOwnCertificates(t *testing.T) {
	t.Parallel()
	at := newClock()
	ours, theirs := newPKI(t), newPKI(t)
	named := func(names ...string) x509.Certificate { return x509.Certificate{DNSNames: names} }
	file := func(name string, template x509.Certificate) Files { return ours.files(name, template, at.read()) }
	node := func(name string) Files { return file(name, named("node1")) }
	clientOnly := named("node1")
	clientOnly.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	host := file("host", named("node0"))
	foreign := theirs.files("d", named("node1"), at.read())
	foreign.CA = host.CA
	late, early := ours.files("e2", named("node0"), at.read().Add(-3*day)), ours.files("f2", named("node0"), at.read().Add(2*day))
	trainer := file("trainer", spiffe("spiffe://corp/ns/ml/sa/trainer"))
	for name, c := range map[string]struct {
		client, server Files
		address        string
		want           error // of the client; errAny: only the server says why
	}{
		"both of the PKI":           {node("a"), host, "node0", nil},
		"another address":           {node("b"), host, "10.0.0.1", jobcert.ErrForeign},
		"a server of another PKI":   {node("c"), theirs.files("c", named("node0"), at.read()), "node0", jobcert.ErrForeign},
		"a client of another PKI":   {foreign, host, "node0", errAny},
		"an expired server":         {node("e"), late, "node0", jobcert.ErrExpired},
		"a server of tomorrow":      {node("f"), early, "node0", jobcert.ErrClock},
		"a server that may not be":  {node("g"), file("g2", clientOnly), "node1", jobcert.ErrForeign},
		"SPIFFE":                    {trainer, file("h", spiffe("spiffe://corp/ns/ml/sa/trainer")), "node0", nil},
		"another SPIFFE ID":         {trainer, file("i", spiffe("spiffe://corp/ns/ml/sa/web")), "node0", jobcert.ErrForeign},
		"a client of another ID":    {file("j", spiffe("spiffe://corp/ns/ml/sa/web")), trainer, "node0", jobcert.ErrForeign},
		"a client without an ID":    {node("k"), trainer, "node0", jobcert.ErrForeign},
		"a server without an ID":    {trainer, host, "node0", jobcert.ErrForeign},
		"a name and no SPIFFE here": {node("l"), file("l2", named("x.example", "node0")), "node0", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var reported []error
			client, server := ofFiles(t, c.client, at, &reported), ofFiles(t, c.server, at, &reported)
			l, clientErr, serverErr := meet(t, client.Client(Launch, c.address), server.Server(Launch))
			switch {
			case len(reported) > 0:
				t.Error(reported)
			case c.want == nil:
				if clientErr != nil || serverErr != nil || !server.Proven(l.server.ConnectionState(), nil) {
					t.Errorf("client %v, server %v", clientErr, serverErr)
				}
			case clientErr == nil || serverErr == nil || !errors.Is(c.want, errAny) && !errors.Is(clientErr, c.want):
				t.Errorf("client %v, server %v, want %v", clientErr, serverErr, c.want)
			}
		})
	}
}

var errAny = errors.New("any")

// TestFilesAreReadAgain: a certificate that was renewed is used from the next connection on; one that is broken is reported once, and the
// one before stays.
func TestFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	at := newClock()
	p := newPKI(t)
	var reported []error
	names := p.files("host", x509.Certificate{DNSNames: []string{"node0"}}, at.read())
	host := ofFiles(t, names, at, &reported)
	client := ofFiles(t, p.files("client", x509.Certificate{DNSNames: []string{"node1"}}, at.read().Add(12*time.Hour)), at, &reported)
	join := func() error {
		_, clientErr, serverErr := meet(t, client.Client(Launch, "node0"), host.Server(Launch))
		return errors.Join(clientErr, serverErr)
	}
	at.add(20 * time.Hour)
	if err := join(); err != nil {
		t.Fatal(err)
	}
	at.add(10 * time.Hour)
	if err := join(); !errors.Is(err, jobcert.ErrExpired) {
		t.Errorf("with the old one: %v", err)
	}
	p.files("host", x509.Certificate{DNSNames: []string{"node0", "renewed"}}, at.read())
	if err := join(); err != nil || len(reported) > 0 {
		t.Errorf("with the new one: %v, %v", err, reported)
	}
	if err := os.WriteFile(names.Cert, []byte("half a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := join(); err != nil {
			t.Error(err)
		}
	}
	if len(reported) != 1 || !strings.Contains(reported[0].Error(), names.Cert) {
		t.Errorf("reported: %v", reported)
	}
}

// TestFilesThatCannotBeUsed: the error names the file.
func TestFilesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	good := p.files("a", x509.Certificate{}, time.Now())
	other := p.files("b", x509.Certificate{}, time.Now())
	for want, f := range map[string]Files{
		"missing.pem":                 {filepath.Join(p.dir, "missing.pem"), good.Key, good.CA},
		"a.pem with the key " + p.dir: {good.Cert, other.Key, good.CA},
		"a.key: it holds no":          {good.Cert, good.Key, good.Key},
	} {
		if _, err := FromFiles(f, time.Now, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := os.WriteFile(filepath.Join(p.dir, "large"), make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FromFiles(Files{filepath.Join(p.dir, "large"), good.Key, good.CA}, time.Now, nil); err == nil {
		t.Error("a file without end is read")
	}
}
