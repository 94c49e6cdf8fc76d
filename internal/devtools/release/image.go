// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"time"
)

// imagePart is the binary of one platform in the image.
type imagePart struct {
	platform platform
	binary   []byte
}

// descriptor names a blob of an image, as the OCI image format has it.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *imagePlatform    `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type imagePlatform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type imageManifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        *descriptor       `json:"config,omitempty"`
	Layers        []descriptor      `json:"layers,omitempty"`
	Manifests     []descriptor      `json:"manifests,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type imageConfig struct {
	Created      time.Time     `json:"created"`
	Architecture string        `json:"architecture"`
	OS           string        `json:"os"`
	Config       runConfig     `json:"config"`
	RootFS       rootFS        `json:"rootfs"`
	History      []historyLine `json:"history"`
}

type runConfig struct {
	User       string            `json:"User"`
	Env        []string          `json:"Env"`
	Entrypoint []string          `json:"Entrypoint"`
	WorkingDir string            `json:"WorkingDir"`
	Labels     map[string]string `json:"Labels"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type historyLine struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
}

const (
	ociIndex    = "application/vnd.oci.image.index.v1+json"
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	ociConfig   = "application/vnd.oci.image.config.v1+json"
	ociLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// blobs collects the files of an OCI image layout.
type blobs struct{ entries []entry }

// add keeps data and returns what names it.
func (b *blobs) add(mediaType string, data []byte) descriptor {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	b.entries = append(b.entries, entry{"blobs/sha256/" + sum, 0o644, data})
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(data)}
}

func (b *blobs) addJSON(mediaType string, value any) (descriptor, error) {
	data, err := json.Marshal(value)
	return b.add(mediaType, data), err
}

// image writes an OCI archive of an image that holds the binary alone, for each platform. It runs as a user without rights.
func (s source) image(parts []imagePart) (artifact, error) {
	var b blobs
	var manifests []descriptor
	for _, part := range parts {
		d, err := s.addPart(&b, part)
		if err != nil {
			return artifact{}, err
		}
		manifests = append(manifests, d)
	}
	all, err := b.addJSON(ociIndex, imageManifest{SchemaVersion: 2, MediaType: ociIndex, Manifests: manifests, Annotations: s.labels()})
	if err != nil {
		return artifact{}, err
	}
	all.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": s.version, "io.containerd.image.name": "localhost/cohort:" + s.version,
	}
	index, err := json.Marshal(imageManifest{SchemaVersion: 2, MediaType: ociIndex, Manifests: []descriptor{all}})
	if err != nil {
		return artifact{}, err
	}
	b.entries = append(b.entries, entry{"index.json", 0o644, index},
		entry{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)})
	data, err := tarball(s.when, b.entries)
	return artifact{"cohort_" + s.version + "_image.oci.tar", data}, err
}

// addPart adds the image of one platform.
func (s source) addPart(b *blobs, part imagePart) (descriptor, error) {
	licence, err := s.read("LICENSE")
	if err != nil {
		return descriptor{}, err
	}
	plain, err := tarball(s.when, []entry{
		{"cohort", 0o755, part.binary}, {"LICENSE", 0o644, licence}, {"tmp/", 0o777 | fs.ModeSticky, nil},
	})
	if err != nil {
		return descriptor{}, err
	}
	packed, err := gzipped(plain)
	if err != nil {
		return descriptor{}, err
	}
	config, err := b.addJSON(ociConfig, imageConfig{
		Created: s.when, Architecture: part.platform.arch, OS: part.platform.os,
		Config: runConfig{
			User: "65534:65534", Env: []string{"PATH=/"}, Entrypoint: []string{"/cohort"}, WorkingDir: "/", Labels: s.labels(),
		},
		RootFS:  rootFS{"layers", []string{fmt.Sprintf("sha256:%x", sha256.Sum256(plain))}},
		History: []historyLine{{s.when, "cohort internal/devtools/release"}},
	})
	if err != nil {
		return descriptor{}, err
	}
	layer := b.add(ociLayer, packed)
	d, err := b.addJSON(ociManifest, imageManifest{
		SchemaVersion: 2, MediaType: ociManifest, Config: &config, Layers: []descriptor{layer}, Annotations: s.labels(),
	})
	d.Platform = &imagePlatform{part.platform.arch, part.platform.os}
	return d, err
}

// labels say what the image is.
func (s source) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    "cohort",
		"org.opencontainers.image.version":  s.version,
		"org.opencontainers.image.revision": s.commit,
		"org.opencontainers.image.source":   "https://" + module,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}
