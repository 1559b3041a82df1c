# shellcheck shell=bash
# Shared by the BioBERT launchers: cased or not, where the data are, fine-tuning and prediction on a task.
# Sourced after lib.sh and finetuning.sh, never run.
# shellcheck disable=SC2034,SC2154 # the launchers set and read these variables

# Sets casing and case_flags from $cased, and case_word (for pretrained_folder).
read_cased() {
    require_booleans cased
    casing=uncased case_word='' cased_flags=(--do_lower_case=true)
    [[ $cased == false ]] || { casing=cased case_word=cased && cased_flags=(--do_lower_case=false); }
}

# Where BioBERT's own pre-training leaves its weights as published, or BERT_DIR.
biobert_folder() {
    local results
    results=$(default_results)
    printf '%s\n' "${BERT_DIR:-$results/biobert_tf_${casing}_$bert_model}"
}

# read_biobert_task TASK: sets module, task_name and task_dir (DATASET_DIR wins).
read_biobert_task() {
    local folder
    case $1 in
        ner_bc5cdr-chem) module=bert_tf.run_ner task_name=bc5cdr folder=BC5CDR/chem ;;
        ner_bc5cdr-disease) module=bert_tf.run_ner task_name=bc5cdr folder=BC5CDR/disease ;;
        rel_chemprot) module=bert_tf.run_re task_name=chemprot folder=chemprot-data_treeLSTM ;;
        *) die "task must be ner_bc5cdr-chem, ner_bc5cdr-disease or rel_chemprot, not '$1'" ;;
    esac
    task_dir=${DATASET_DIR:-$DATA_DIR/biobert/$folder}
    [[ $DRY_RUN == true || -d $task_dir ]] ||
        die "there is no $task_dir: 'python -m data.datasets fetch $task_name --data_dir $DATA_DIR' puts the BLUE" \
            "benchmark's files there; or set DATASET_DIR to a folder of yours (BC5CDR: train.tsv, devel.tsv, test.tsv;" \
            "ChemProt: trainingPosit_chem, developPosit_chem and testPosit_chem, or train, dev and test as .tsv or" \
            "SciBERT's .txt)"
}

# finetune_biobert TASK LEARNING_RATE SEQ_LENGTH EVAL_BATCH_SIZE EPOCHS WORD...: a whole launcher of fine-tuning, whose
# published defaults are the first words.
finetune_biobert() {
    local task=$1 published=("${@:2:4}")
    parse_common "${@:6}"
    find_bert_python
    split_words 11 "${ARGS[@]}"
    set -- "${POSITIONAL[@]}"
    init_checkpoint=${1:-}
    batch_size=${2:-8}
    learning_rate=${3:-${published[0]}}
    cased=${4:-false}
    precision=${5:-}
    use_xla=${6:-}
    num_gpu=${7:-}
    seq_length=${8:-${published[1]}}
    bert_model=${9:-base}
    eval_batch_size=${10:-${published[2]}}
    epochs=${11:-${published[3]}}
    require_positive_integers batch_size seq_length eval_batch_size
    require_positive_numbers learning_rate epochs
    read_cased
    read_machine_words 16
    read_global_batch
    read_biobert_task "$task"
    find_weights "$(biobert_folder)"
    case_flags=("${cased_flags[@]}")
    training_flags

    tag=tf_bert_biobert_${task}_${bert_model}_${casing}_${precision}_gbs${gbs}
    read_results "$tag"
    logged "$RESULTS_DIR/$tag.$date.log" _train_and_predict
}

_train_and_predict() {
    log "results: $RESULTS_DIR"
    log "weights: $init_checkpoint"
    describe_training
    finetune "$module" "${train_flags[@]}" \
        --task_name="$task_name" \
        --data_dir="$task_dir" \
        --do_eval \
        --eval_batch_size="$eval_batch_size" \
        --do_predict \
        --predict_batch_size="$eval_batch_size"
}
