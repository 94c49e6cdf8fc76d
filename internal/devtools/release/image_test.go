// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// TestImage: the container image has the binaries of the archives alone, and runs them as a user without rights.
func TestImage(t *testing.T) {
	t.Parallel()
	m := release(t)
	_, data := m.file(t, "cohort_*_image.oci.tar")
	files := imageFiles(untar(t, data))
	var index, list imageManifest
	if err := json.Unmarshal(files["index.json"].data, &index); err != nil {
		t.Fatal(err)
	}
	files.json(t, index.Manifests[0], &list)
	var want, got []string
	for _, p := range m.platforms {
		if p.image {
			want = append(want, p.String())
		}
	}
	for _, d := range list.Manifests {
		got = append(got, d.Platform.OS+"/"+d.Platform.Architecture)
		m.checkImage(t, files, d)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the image is for %v, not for %v", got, want)
	}
}

// checkImage: the image of one platform.
func (m made) checkImage(t *testing.T, files imageFiles, d descriptor) {
	t.Helper()
	var manifest imageManifest
	files.json(t, d, &manifest)
	var config imageConfig
	files.json(t, *manifest.Config, &config)
	if c := config.Config; c.User != "65534:65534" || !slices.Equal(c.Entrypoint, []string{"/cohort"}) ||
		c.Labels["org.opencontainers.image.version"] != m.source.version || config.Architecture != d.Platform.Architecture {
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
	p, err := choose(d.Platform.OS + "/" + d.Platform.Architecture)
	if err != nil {
		t.Fatal(err)
	}
	_, packed := m.file(t, m.source.stem(p[0])+".tar.gz")
	if archive := untar(t, gunzip(t, packed)); !bytes.Equal(archive["cohort"].data, layer["cohort"].data) {
		t.Errorf("%s: the image has another binary than the archive", p[0])
	}
	if p[0] == host() {
		runsJob(t, layer)
	}
}

// runsJob: the image's own user runs a job in the image's root, with nothing but what a container runtime mounts.
func runsJob(t *testing.T, layer map[string]entry) {
	t.Helper()
	root := t.TempDir()
	if !canChroot() || exec.CommandContext(t.Context(), "unshare", "--mount", "true").Run() != nil {
		t.Log("not run: that needs the rights of root")
		return
	}
	for _, dir := range []string{"tmp", "proc", "dev"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), layer["tmp/"].mode|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "cohort"), layer["cohort"].data, layer["cohort"].mode); err != nil {
		t.Fatal(err)
	}
	const script = `mount -t proc proc "$1/proc" && mount --bind /dev "$1/dev" &&
		exec chroot --userspec=65534:65534 "$1" /cohort run --nproc-per-node 2 --evidence - /cohort version`
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script, "sh", root).CombinedOutput()
	if err != nil || strings.Count(string(out), "cohort v") != 2 {
		t.Errorf("a job in the image: %v\n%s", err, out)
	}
}
