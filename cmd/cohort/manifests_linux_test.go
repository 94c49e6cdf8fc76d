// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cohort-dist/cohort/launch"
)

// The fields of the schedulers' files that the documentation uses. An unknown one is an error, as it is for the scheduler.
type (
	meta   struct{ Name string }
	envVar struct {
		Name, Value string
		ValueFrom   struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	container struct {
		Name, Image  string
		Command      []yaml.Node
		Env          []envVar
		VolumeMounts []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
		TerminationMessagePolicy string `yaml:"terminationMessagePolicy"`
	}
	podTemplate struct {
		Spec struct {
			Subdomain     string
			RestartPolicy string `yaml:"restartPolicy"`
			Containers    []container
			Volumes       []volume
		}
	}
	volume struct {
		Name     string
		EmptyDir struct {
			Medium    string
			SizeLimit string `yaml:"sizeLimit"`
		} `yaml:"emptyDir"`
		Secret struct {
			SecretName  string `yaml:"secretName"`
			DefaultMode int    `yaml:"defaultMode"`
		}
	}
	jobSpec struct {
		CompletionMode           string `yaml:"completionMode"`
		Completions, Parallelism int
		BackoffLimit             *int `yaml:"backoffLimit"`
		Template                 podTemplate
	}
	header struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   meta
	}
	serviceFile struct {
		header `yaml:",inline"`
		Spec   struct {
			ClusterIP                string `yaml:"clusterIP"`
			PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
			Selector                 map[string]string
		}
	}
	jobFile struct {
		header `yaml:",inline"`
		Spec   jobSpec
	}
	jobSetFile struct {
		header `yaml:",inline"`
		Spec   struct {
			ReplicatedJobs []struct {
				Name     string
				Replicas int
				Template struct{ Spec jobSpec }
			} `yaml:"replicatedJobs"`
		}
	}
	trainJobFile struct {
		header `yaml:",inline"`
		Spec   struct {
			RuntimeRef meta `yaml:"runtimeRef"`
			Trainer    struct {
				Image          string
				NumNodes       int `yaml:"numNodes"`
				NumProcPerNode int `yaml:"numProcPerNode"`
				Command        []yaml.Node
				Env            []envVar
			}
		}
	}
	pyTorchJobFile struct {
		header `yaml:",inline"`
		Spec   struct {
			NprocPerNode string                    `yaml:"nprocPerNode"`
			Replicas     map[string]pyTorchReplica `yaml:"pytorchReplicaSpecs"`
		}
	}
	pyTorchReplica struct {
		Replicas      int
		RestartPolicy string `yaml:"restartPolicy"`
		Template      podTemplate
	}
	skyFile struct {
		Name       string
		NumNodes   int `yaml:"num_nodes"`
		Resources  struct{ Accelerators string }
		Workdir    string
		Secrets    map[string]string
		Setup, Run string
	}
)

// tokenFile and tokenValue stand for the token that a scheduler gives to a launcher, as a file and as a variable.
const tokenFile, tokenValue = "the file", "the value"

// pod is what a node of a job gets from its scheduler.
type pod struct {
	command []string
	env     map[string]string
}

// manifests returns the documents of all YAML blocks of a page.
func manifests(t *testing.T, page string) [][]byte {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		all = append(all, bytes.Split(block[1], []byte("\n---\n"))...)
	}
	return all
}

// strict reads a document that may have the fields of its type only.
func strict[T any](t *testing.T, text []byte) T {
	t.Helper()
	var v T
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		t.Fatalf("more than one document in\n%s", text)
	}
	return v
}

// words returns a command, each word of which must be a string: Kubernetes takes no numbers there.
func words(t *testing.T, nodes []yaml.Node) []string {
	t.Helper()
	var all []string
	for _, n := range nodes {
		if n.Tag != "!!str" {
			t.Errorf("%s in a command is a %s, not a string", n.Value, n.Tag)
		}
		all = append(all, n.Value)
	}
	return all
}

// secretEnv returns the variable by which a launcher finds the token of the job, which is in a Secret.
func secretEnv(t *testing.T, all []envVar, mounts map[string]volume) map[string]string {
	t.Helper()
	if len(all) != 1 {
		t.Fatalf("variables %+v, want that of the token", all)
	}
	v := all[0]
	secret := mounts[path.Dir(v.Value)].Secret
	switch {
	case v.Name == "COHORT_TOKEN_FILE" && path.Base(v.Value) == "token" && secret.SecretName == "train-token" &&
		secret.DefaultMode == 0o400:
		return map[string]string{v.Name: tokenFile}
	case v.Name == "COHORT_TOKEN" && v.ValueFrom.SecretKeyRef.Name == "train-token" && v.ValueFrom.SecretKeyRef.Key == "token":
		return map[string]string{v.Name: tokenValue}
	}
	t.Fatalf("the token comes from %+v", v)
	return nil
}

// only returns the command of the one container of a pod, whose policy a job may have, and the variable of its token.
func only(t *testing.T, p podTemplate, name string) (command []string, env map[string]string) {
	t.Helper()
	if len(p.Spec.Containers) != 1 || p.Spec.Containers[0].Name != name || p.Spec.Containers[0].Image == "" {
		t.Fatalf("containers %+v, want one named %s", p.Spec.Containers, name)
	}
	mounts := map[string]volume{}
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if v.Name == m.Name {
				mounts[m.MountPath] = v
			}
		}
		if !slices.ContainsFunc(p.Spec.Volumes, func(v volume) bool { return v.Name == m.Name }) {
			t.Errorf("volume %s is missing", m.Name)
		}
	}
	command = words(t, p.Spec.Containers[0].Command)
	if policy := p.Spec.Containers[0].TerminationMessagePolicy; slices.Contains(command, "/dev/termination-log") !=
		(policy == "FallbackToLogsOnError") {
		t.Errorf("the report goes to the pod's status, or the end of its log does: %q and policy %q", command, policy)
	}
	return command, secretEnv(t, p.Spec.Containers[0].Env, mounts)
}

// indexed returns the pods of an indexed job, and checks that its size is the one that its command names.
func indexed(t *testing.T, j jobSpec) []pod {
	t.Helper()
	if j.CompletionMode != "Indexed" || j.Completions != j.Parallelism || j.Template.Spec.RestartPolicy != "Never" ||
		j.BackoffLimit == nil {
		t.Errorf("%+v", j)
	}
	command, env := only(t, j.Template, "node")
	var all []pod
	for i := range j.Completions {
		one := maps.Clone(env)
		one["JOB_COMPLETION_INDEX"] = strconv.Itoa(i)
		all = append(all, pod{command, one})
	}
	return all
}

// petPods are those of Kubeflow, which sets torchrun's variables.
func petPods(commands [][]string, env map[string]string, processes, master string, port int) []pod {
	var all []pod
	for i, command := range commands {
		one := map[string]string{
			"PET_NNODES": strconv.Itoa(len(commands)), "PET_NODE_RANK": strconv.Itoa(i), "PET_NPROC_PER_NODE": processes,
			"PET_MASTER_ADDR": master, "PET_MASTER_PORT": strconv.Itoa(port),
		}
		maps.Copy(one, env)
		all = append(all, pod{command, one})
	}
	return all
}

// pods returns what each node of a document gets, and the host where they must meet.
func pods(t *testing.T, text []byte) (kind string, all []pod, host string) {
	t.Helper()
	var h header
	if err := yaml.Unmarshal(text, &h); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	kind = h.APIVersion + " " + h.Kind
	switch kind {
	case "v1 Service":
		s := strict[serviceFile](t, text)
		if s.Spec.ClusterIP != "None" || s.Spec.Selector["job-name"] != s.Metadata.Name || !s.Spec.PublishNotReadyAddresses {
			t.Errorf("%+v", s)
		}
	case "batch/v1 Job":
		j := strict[jobFile](t, text)
		if j.Spec.Template.Spec.Subdomain != j.Metadata.Name { // the name of the Service
			t.Errorf("subdomain %s", j.Spec.Template.Spec.Subdomain)
		}
		return kind, indexed(t, j.Spec), j.Metadata.Name + "-0." + j.Spec.Template.Spec.Subdomain
	case "jobset.x-k8s.io/v1alpha2 JobSet":
		j := strict[jobSetFile](t, text)
		if len(j.Spec.ReplicatedJobs) != 1 || j.Spec.ReplicatedJobs[0].Replicas != 1 {
			t.Fatalf("%+v", j)
		}
		r := j.Spec.ReplicatedJobs[0]
		return kind, indexed(t, r.Template.Spec), j.Metadata.Name + "-" + r.Name + "-0-0." + j.Metadata.Name
	case "trainer.kubeflow.org/v1alpha1 TrainJob":
		j := strict[trainJobFile](t, text)
		if j.Spec.RuntimeRef.Name != "torch-distributed" || j.Spec.Trainer.Image == "" {
			t.Errorf("%+v", j)
		}
		host = j.Metadata.Name + "-node-0-0." + j.Metadata.Name
		commands := slices.Repeat([][]string{words(t, j.Spec.Trainer.Command)}, j.Spec.Trainer.NumNodes)
		env := secretEnv(t, j.Spec.Trainer.Env, nil)
		return kind, petPods(commands, env, strconv.Itoa(j.Spec.Trainer.NumProcPerNode), host, 29500), host
	case "kubeflow.org/v1 PyTorchJob":
		j := strict[pyTorchJobFile](t, text)
		host = j.Metadata.Name + "-master-0"
		var commands [][]string
		var env map[string]string
		for _, name := range []string{"Master", "Worker"} {
			r, found := j.Spec.Replicas[name]
			if !found || len(j.Spec.Replicas) != 2 || r.RestartPolicy != "Never" {
				t.Fatalf("%+v", j.Spec.Replicas)
			}
			var command []string
			command, env = only(t, r.Template, "pytorch")
			commands = append(commands, slices.Repeat([][]string{command}, r.Replicas)...)
		}
		all = petPods(commands, env, j.Spec.NprocPerNode, host, 23456)
		for i, p := range all { // which it sets too, and which say something else to torchrun's workers
			maps.Copy(p.env, map[string]string{"RANK": strconv.Itoa(i), "WORLD_SIZE": "32", "MASTER_ADDR": host, "MASTER_PORT": "23456"})
		}
		return kind, all, host
	case " ":
		s := strict[skyFile](t, text)
		_, gpus, _ := strings.Cut(s.Resources.Accelerators, ":")
		var ips []string
		for i := range s.NumNodes {
			ips = append(ips, fmt.Sprintf("10.0.0.%d", i+1))
		}
		if _, found := s.Secrets["COHORT_TOKEN"]; !found || len(s.Secrets) != 1 {
			t.Errorf("secrets %v", s.Secrets)
		}
		for i := range s.NumNodes {
			all = append(all, pod{strings.Fields(s.Run), map[string]string{
				"SKYPILOT_NODE_RANK": strconv.Itoa(i), "SKYPILOT_NUM_NODES": strconv.Itoa(s.NumNodes),
				"SKYPILOT_NODE_IPS":          strings.Join(ips, "\n"),
				"SKYPILOT_NUM_GPUS_PER_NODE": gpus, "SKYPILOT_TASK_ID": "sky-1", "COHORT_TOKEN": tokenValue,
			}})
		}
		return "SkyPilot", all, ips[0]
	default:
		t.Fatalf("the page has a %s, which this test does not know", kind)
	}
	return kind, nil, ""
}

// TestManifests: the files of docs/operations.md have the fields that their schedulers know, and on the nodes that they
// describe "cohort run" finds its place: 4 nodes of 8 ranks that meet at the first of them.
func TestManifests(t *testing.T) {
	t.Parallel()
	file, _ := newToken(t)
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, text := range manifests(t, "../../docs/operations.md") {
		kind, all, host := pods(t, text)
		kinds = append(kinds, kind)
		if kind == "v1 Service" {
			continue
		}
		if len(all) != 4 {
			t.Errorf("%s: %d nodes", kind, len(all))
		}
		for i, p := range all {
			if len(p.command) < 3 || strings.TrimPrefix(p.command[0], "./") != "cohort" || p.command[1] != "run" ||
				p.command[len(p.command)-1] != "train.py" {
				t.Fatalf("%s: command %q", kind, p.command)
			}
			cmd := exec.Command("cohort", append([]string{"run", "--dry-run", "--json"}, p.command[2:]...)...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}
			for name, value := range p.env {
				switch value {
				case tokenFile:
					value = file
				case tokenValue:
					value = string(token)
				}
				cmd.Env = append(cmd.Env, name+"="+value)
			}
			var problems bytes.Buffer
			cmd.Stderr = &problems
			out, err := cmd.Output()
			var plan launch.Plan
			if err == nil {
				err = json.Unmarshal(out, &plan)
			}
			if err != nil || len(plan.Workers) != 8 {
				t.Fatalf("%s, node %d: %v\n%s%s", kind, i, err, out, &problems)
			}
			for local, w := range plan.Workers {
				for _, want := range []string{
					fmt.Sprint("RANK=", 8*i+local), "WORLD_SIZE=32", fmt.Sprint("GROUP_RANK=", i),
					"GROUP_WORLD_SIZE=4", "MASTER_ADDR=" + host,
				} {
					if !slices.Contains(w.Set, want) {
						t.Errorf("%s, node %d, worker %d: no %s in %q", kind, i, local, want, w.Set)
					}
				}
			}
			if !strings.Contains(plan.Store, " "+host+":") {
				t.Errorf("%s, node %d: %s", kind, i, plan.Store)
			}
		}
	}
	for _, want := range []string{
		"batch/v1 Job", "jobset.x-k8s.io/v1alpha2 JobSet", "trainer.kubeflow.org/v1alpha1 TrainJob",
		"kubeflow.org/v1 PyTorchJob", "SkyPilot",
	} {
		if !slices.Contains(kinds, want) {
			t.Errorf("the page has no %s", want)
		}
	}
}
