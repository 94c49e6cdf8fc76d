// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/internal/security/jobcert"
)

// Files names the certificates of a user's own PKI, in PEM: the certificate of this launcher with what leads to the authority, its key,
// and the authorities whose certificates are accepted.
type Files struct{ Cert, Key, CA string }

// maxFile bounds each file.
const maxFile = 1 << 20

// files reads them again when they change. One that cannot be read then is reported, and the one before stays.
type files struct {
	names  Files
	report func(error)
	mu     struct {
		sync.Mutex
		stamps [3]stamp
		pair   *tls.Certificate
		roots  *x509.CertPool
	}
}

// stamp shows that a file has changed.
type stamp struct {
	size int64
	time time.Time
}

// FromFiles makes the credentials of a launcher that has certificates of the user's own PKI. report is given what goes wrong when they
// are read again; now is the clock.
func FromFiles(names Files, now func() time.Time, report func(error)) (*Credentials, error) {
	f := &files{names: names, report: report}
	f.mu.stamps = f.stamps()
	pair, roots, err := names.load()
	if err != nil {
		return nil, err
	}
	f.mu.pair, f.mu.roots = pair, roots
	return &Credentials{now: now, files: f}, nil
}

func (n Files) all() [3]string { return [3]string{n.Cert, n.Key, n.CA} }

func (f *files) stamps() (all [3]stamp) {
	for i, name := range f.names.all() {
		if info, err := os.Stat(name); err == nil {
			all[i] = stamp{info.Size(), info.ModTime()}
		}
	}
	return all
}

func (n Files) load() (*tls.Certificate, *x509.CertPool, error) {
	var text [3][]byte
	for i, name := range n.all() {
		var err error
		if text[i], err = readFile(name); err != nil {
			return nil, nil, err
		}
	}
	pair, err := tls.X509KeyPair(text[0], text[1])
	if err != nil {
		return nil, nil, fmt.Errorf("the certificate %s with the key %s: %w", n.Cert, n.Key, err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text[2]) {
		return nil, nil, fmt.Errorf("the authorities in %s: it holds no certificate in PEM", n.CA)
	}
	return &pair, roots, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(name) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("%s: it has more than %d bytes", name, maxFile)
	}
	return text, err
}

// refresh reads the files again if one has changed.
func (f *files) refresh() (*tls.Certificate, *x509.CertPool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := f.stamps(); now != f.mu.stamps {
		f.mu.stamps = now
		if pair, roots, err := f.names.load(); err != nil {
			f.report(err)
		} else {
			f.mu.pair, f.mu.roots = pair, roots
		}
	}
	return f.mu.pair, f.mu.roots
}

func (f *files) certificate() *tls.Certificate {
	pair, _ := f.refresh()
	return pair
}

// verify checks the certificate of the other side: of the server at host, or of a client if host is "".
func (f *files) verify(s tls.ConnectionState, host string, now time.Time) error {
	own, roots := f.refresh()
	if len(s.PeerCertificates) == 0 {
		return fmt.Errorf("%w: it has shown none", jobcert.ErrForeign)
	}
	usage, peer := x509.ExtKeyUsageServerAuth, s.PeerCertificates[0]
	if host == "" {
		usage = x509.ExtKeyUsageClientAuth
	}
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := peer.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return refusedFor(err, peer, now)
	}
	if id := spiffeID(own.Leaf); id != "" {
		if other := spiffeID(peer); other != id {
			return fmt.Errorf("%w: its SPIFFE ID is %q, and that of this launcher %q", jobcert.ErrForeign, other, id)
		}
		return nil
	}
	if host != "" {
		if err = peer.VerifyHostname(host); err != nil {
			return fmt.Errorf("%w: %w", jobcert.ErrForeign, err)
		}
	}
	return nil
}

// refusedFor says with the errors of package jobcert why a certificate was refused.
func refusedFor(err error, peer *x509.Certificate, now time.Time) error {
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case !ok || invalid.Reason != x509.Expired:
		return fmt.Errorf("%w: %w", jobcert.ErrForeign, err)
	case now.Before(peer.NotBefore):
		return fmt.Errorf("%w: %w", jobcert.ErrClock, err)
	}
	return fmt.Errorf("%w: %w", jobcert.ErrExpired, err)
}

// spiffeID is the SPIFFE ID in a certificate, "" if it has none.
func spiffeID(c *x509.Certificate) string {
	if c == nil {
		return ""
	}
	for _, u := range c.URIs {
		if u.Scheme == "spiffe" && slices.Equal(c.URIs[:1], c.URIs) {
			return u.String()
		}
	}
	return ""
}
