// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"testing"
)

// imageFiles reads an OCI archive.
type imageFiles map[string]entry

// blob returns what a descriptor names, and checks that it is that.
func (f imageFiles) blob(t *testing.T, d descriptor) []byte {
	t.Helper()
	data := f["blobs/sha256/"+d.Digest[len("sha256:"):]].data
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); got != d.Digest || len(data) != d.Size {
		t.Fatalf("%s: %d bytes with %s, not %d with %s", d.MediaType, len(data), got, d.Size, d.Digest)
	}
	return data
}

func (f imageFiles) json(t *testing.T, d descriptor, into any) {
	t.Helper()
	if err := json.Unmarshal(f.blob(t, d), into); err != nil {
		t.Fatal(err)
	}
}

// TestImage: the container image has the binary alone, and runs it as a user without rights.
func TestImage(t *testing.T) {
	t.Parallel()
	m := release(t)
	if !host().image {
		t.Skip("no image is made for " + host().String())
	}
	_, data := m.file(t, "cohort_*_image.oci.tar")
	files := imageFiles(untar(t, data))
	var index, list, manifest imageManifest
	if err := json.Unmarshal(files["index.json"].data, &index); err != nil {
		t.Fatal(err)
	}
	files.json(t, index.Manifests[0], &list)
	if p := list.Manifests[0].Platform; len(list.Manifests) != 1 || p.OS != host().os || p.Architecture != host().arch {
		t.Errorf("manifests %+v", list.Manifests)
	}
	files.json(t, list.Manifests[0], &manifest)
	var config imageConfig
	files.json(t, *manifest.Config, &config)
	if c := config.Config; c.User != "65534:65534" || !slices.Equal(c.Entrypoint, []string{"/cohort"}) ||
		c.Labels["org.opencontainers.image.version"] != m.source.version {
		t.Errorf("config %+v", c)
	}
	plain := gunzip(t, files.blob(t, manifest.Layers[0]))
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(plain)); !slices.Equal(config.RootFS.DiffIDs, []string{got}) {
		t.Errorf("layers %v, not %s", config.RootFS.DiffIDs, got)
	}
	layer := untar(t, plain)
	if names := slices.Sorted(maps.Keys(layer)); !slices.Equal(names, []string{"LICENSE", "cohort", "tmp/"}) {
		t.Errorf("layer %v", names)
	}
	if layer["cohort"].mode != 0o755 || layer["tmp/"].mode != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("modes %v, %v", layer["cohort"].mode, layer["tmp/"].mode)
	}
}
