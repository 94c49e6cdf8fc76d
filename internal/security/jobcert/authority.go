// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobcert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strconv"
	"time"
)

const (
	// Early is how long before now a certificate begins: clocks differ.
	Early = time.Hour
	// Life is how long it lasts after that. A job that lasts longer renews it.
	Life = 30 * 24 * time.Hour
)

// forever is the end of an authority that does not expire, and since the beginning of all.
var (
	since   = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	forever = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
)

// Authority issues certificates: that of the job, or the launcher of one node.
type Authority struct {
	name Name // of a node; the zero value is the job's authority
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewRoot returns the authority of a job, derived from a seed: all launchers that know the seed have the same one. Nothing that it has
// issued is valid after expires, unless that is zero.
func NewRoot(seed [32]byte, job string, expires time.Time) (*Authority, error) {
	if !isWord(job) {
		return nil, fmt.Errorf("jobcert: %q cannot be the name of a job in a certificate", job)
	}
	key, err := keyFrom(seed)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: subject(job), NotBefore: since, NotAfter: forever,
		IsCA: true, BasicConstraintsValid: true, MaxPathLen: 1, KeyUsage: x509.KeyUsageCertSign,
	}
	if !expires.IsZero() {
		template.NotAfter = expires
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("jobcert: the authority of the job: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert: cert, key: key}, err
}

// keyFrom derives a key of P-256. HKDF is asked again in the case, of one in 2^32, that what it gives is not one.
func keyFrom(seed [32]byte) (*ecdsa.PrivateKey, error) {
	for n := 0; ; n++ {
		scalar, err := hkdf.Key(sha256.New, seed[:], nil, "P-256 "+strconv.Itoa(n), 32)
		if err != nil {
			return nil, fmt.Errorf("jobcert: %w", err)
		}
		key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar)
		if err == nil || n == 8 {
			return key, err
		}
	}
}

func subject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"cohort"}, CommonName: name}
}

// NewNode returns the authority of a node, of the certificate that the root has issued for the node's key.
func NewNode(der []byte, key *ecdsa.PrivateKey) (*Authority, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("jobcert: the certificate of this node: %w", err)
	}
	name, err := nameIn(cert)
	switch {
	case err != nil:
		return nil, err
	case name.Role != Node || !cert.IsCA:
		return nil, fmt.Errorf("jobcert: a certificate of %s is not one of a node", name.words())
	case !key.PublicKey.Equal(cert.PublicKey):
		return nil, errors.New("jobcert: the certificate is for another key than that of this node")
	}
	return &Authority{name: name, cert: cert, key: key}, nil
}

// Certificate is that of the authority itself.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

// mayIssue says why the authority may not issue a certificate of this name.
func (a *Authority) mayIssue(n Name) error {
	root := a.name == Name{}
	job := a.name.Job
	if root {
		job = a.cert.Subject.CommonName
	}
	switch forRoot := n.Role == Host || n.Role == Node; {
	case n.Job != job:
		return fmt.Errorf("%s is of another job", n.words())
	case root && !forRoot:
		return fmt.Errorf("the certificate of %s is its launcher's to issue", n.words())
	case !root && (forRoot || n.Node != a.name.Node):
		return fmt.Errorf("%s may not issue a certificate of %s", a.name.words(), n.words())
	}
	return nil
}

// Issue makes a certificate for a key, as DER. It is valid from [Early] before now for [Life], and not longer than that of the authority.
func (a *Authority) Issue(n Name, public crypto.PublicKey, now time.Time) ([]byte, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	if err := a.mayIssue(n); err != nil {
		return nil, fmt.Errorf("jobcert: %w", err)
	}
	uri, err := url.Parse(n.String())
	if err != nil {
		return nil, fmt.Errorf("jobcert: %w", err)
	}
	template := &x509.Certificate{
		Subject: subject(n.words()), URIs: []*url.URL{uri},
		NotBefore: now.Add(-Early), NotAfter: earlier(now.Add(Life), a.cert.NotAfter),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if n.Role == Node {
		template.IsCA, template.MaxPathLenZero = true, true
		template.KeyUsage |= x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("jobcert: a certificate of %s: %w", n.words(), err)
	}
	return der, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// NewKey makes the key of a certificate.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// Request asks for a certificate for a key, as DER. It says nothing but that the owner has the key: the name is the issuer's to give.
func Request(key *ecdsa.PrivateKey) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}

// maxRequest bounds a request: one for a key of P-256 has about 220 bytes.
const maxRequest = 1024

// KeyOf returns the key that a request asks a certificate for.
func KeyOf(request []byte) (*ecdsa.PublicKey, error) {
	if len(request) > maxRequest {
		return nil, fmt.Errorf("jobcert: a request for a certificate has %d bytes, at most %d are allowed", len(request), maxRequest)
	}
	r, err := x509.ParseCertificateRequest(request)
	if err != nil {
		return nil, fmt.Errorf("jobcert: a request for a certificate: %w", err)
	}
	key, ok := r.PublicKey.(*ecdsa.PublicKey)
	switch {
	case !ok || key.Curve != elliptic.P256():
		return nil, errors.New("jobcert: a request for a certificate is for another kind of key than P-256")
	case r.CheckSignature() != nil:
		return nil, errors.New("jobcert: a request for a certificate is not signed with its key")
	}
	return key, nil
}
