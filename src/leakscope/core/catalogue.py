"""The public names: where each lives, what role it plays, and what it is in one line.

Kept apart from the modules themselves so that help, lists and usage errors need no torch;
a test holds it equal to the modules' own docstrings.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A public name."""

    module: str
    role: str
    line: str


_TABLE = """
Inference       game      games                      Tell which value of a private column a batch's records share.
Distribution    game      games                      Tell in which of ``bins`` ranges the share of records with a property lies.
UserInference   game      games                      Tell which of ``candidates`` people a batch belongs to, people never met before.
Membership      game      games                      Tell whether a record was among those a client trained on.
Clients         game      games                      Tell the secret of every client of a recording: its updates are the trials of a game.
Reconstruction  game      games                      Recover the records behind a release as they are.
Ratio           game      games                      Tell which of ``ratios`` a subset's share of records with a property is
Canary          game      audits.mechanism.canary    Tell which of two neighbouring records is behind a gradient (paper 000, definition 7.2).
AttributeAudit  audit     audits.mechanism.canary    How much one DP-SGD step gives away about one attribute of a chosen record, as an epsilon.
MembershipAudit audit     audits.membership          How well the updates of a federation tell who was trained on, client by client.
RecordingAudit  audit     audits.membership          How well the updates in a recording tell who was trained on, client by client.
QuestionAudit   audit     audits.questions           What else a recording tells: whose a known record is, whether a person took part, whose an update is.
SiteAudit       audit     audits.sites               What a site's updates tell of the site, and from which site an unnamed update is.
RecordsAudit    audit     audits.records             How many records come back, exactly and proven, from one gradient or upload, by the records behind it.
RecordedRecords audit     audits.records             How many records of each client come back, exactly and proven, from the uploads in a recording.
LayerAudit      audit     audits.layers              Which layer of a model gives away what, and what protecting it costs.
GuardAudit      audit     audits.guards              What a guard's representations are worth, and what attackers trained anew find in them.
Posterior       attack    attacks.posterior          A fresh classifier per round on rehearsed releases with secrets at equal odds.
Joint           attack    attacks.joint              Regularised discriminant analysis (Friedman, 1989) of all rounds' features together.
NoiseAware      attack    attacks.posterior          Principal components of clean rehearsed gradients, the known noise drawn among them.
Family          attack    attacks.family             The best of several classifiers, chosen and calibrated on people they were not fitted to.
PLDA            attack    attacks.users              The likeliest candidate by probabilistic linear discriminant analysis (Ioffe, 2006) of other people.
MeanInput       attack    attacks.mean_input         The likeliest candidate by the mean input of the first linear layer, which no label has turned.
Prototype       attack    attacks.users              The nearest candidate in an embedding learned by telling other people apart.
LikelihoodRatio attack    audits.mechanism.canary    The most powerful test between two Gaussian releases of known means.
L2              attack    audits.mechanism.canary    The paper's statistic: the distance ||g - g0|| to the clipped gradient under the null hypothesis.
Cosine          attack    attacks.alignment          The cosine between a record's gradient and the update, its mean over rounds.
GradientDiff    attack    attacks.alignment          How much nearer the update is to a record's gradient than to nothing.
Whitened        attack    attacks.whitened           The cosine's matched filter: update and gradient whitened by the non-members' gradients.
FedMIA          attack    attacks.whitened           Whitened scores against a client's updates less those against the other clients' updates.
InOut           attack    attacks.whitened           Whitened scores against sums in which a client took part less those against sums without it.
JointRegression attack    attacks.joint_regression   The coefficient of a record's gradient in the sum, of a regression on all candidates' at once.
SpanDistance    attack    attacks.span_membership    How near a record's input of a linear layer lies to the row space of the layer's upload.
WhitenedSpan    attack    attacks.span_membership    How little of a record's whitened input of a linear layer lies where the layer's uploads are small.
FedLoss         attack    attacks.losses             Minus the loss under the global models, its mean over the observed rounds.
Loss            attack    attacks.losses             Minus the loss under the last global model.
ModifiedEntropy attack    attacks.losses             Minus the entropy that also counts against a confident mistake.
Merlin          attack    attacks.losses             How often noise on a record raises its loss under the last global model.
Zari            attack    attacks.losses             A network on the probabilities of the true label over rounds, taught by KNOWN MEMBERS.
DeepLeakage     attack    attacks.reconstruction     Records whose gradients have the least squared distance to the released ones, by L-BFGS (DLG).
InvertingGradients attack    attacks.reconstruction     Records whose gradients point where the released ones do, smooth ones first, by Adam.
FirstLayer      attack    attacks.closed_form        The records that a first linear layer with a bias gives away in closed form.
LayerByLayer    attack    attacks.layer_by_layer     One record behind a gradient of linear layers and convolutions with sigmoids or tanh between, in closed form.
RowSpace        attack    attacks.row_space          The records of a table that the row space of a first linear layer's gradient or upload holds, proven.
SpanMatching    attack    attacks.span_matching      Records of a table fitted to a gradient or upload, near the row space of its first layer, each cell with a confidence.
TextSpace       attack    attacks.texts              The words, and then the whole texts, that the spaces of a transformer's gradient hold, proven.
Network         attack    attacks.representations    A network trained on rehearsed representations until held-out records no longer gain.
Fisher          attack    attacks.representations    One direction fitted to single records of the adversary's own, then one number for each release.
Mixture         attack    attacks.mixture            The likelihood of a release under each value: a mixture of Gaussians around clean representations.
Trees           attack    attacks.mixture            Boosted trees on rehearsed releases, which need no scale and find corners that networks round off.
Strongest       attack    attacks.strongest          The best of several attacks, chosen on records that none of them learned from.
Decensored      attack    attacks.representations    Censored representations mapped to those of an uncensored model, and the secret inferred from these.
LossThreshold   attack    attacks.members            Members have less loss than a threshold, which known members and non-members set
HeadConfidence  attack    attacks.members            Members are classified with more confidence than a threshold, whatever their label
LabelAware      attack    attacks.members            A network on the representation, the label, the head's output and the loss, taught by KNOWN MEMBERS.
LiRA            attack    attacks.members            The likelihood ratio of a record's confidence under shadow models that had it and that had not.
Decoder         attack    attacks.decoders           A network from released representations to records, trained on the adversary's own until it converges.
Inversion       attack    attacks.decoders           Records whose representation is the released one, by gradient steps on the records themselves.
RandomForest    head      attacks.heads              Random forest, 50 trees: the head of paper 000.
NaiveBayes      head      attacks.heads              Gaussian naive Bayes.
LDA             head      attacks.heads              Linear discriminant analysis; the covariance is pulled towards the identity.
QDA             head      attacks.heads              Quadratic discriminant analysis; each covariance is pulled towards the identity.
Perceptron      head      attacks.heads              Neural network with one hidden layer of 100.
Logistic        head      attacks.heads              Logistic regression; ``strength`` is the inverse of the ridge penalty.
MaxPool         reduction attacks.reductions         The largest of every ``width`` neighbours, sign kept.
PCA             reduction attacks.reductions         Principal components of the rehearsed gradients.
FirstInput      reduction attacks.reductions         The mean input of the first linear layer with a bias, each record weighing as it moved the layer.
Flat            reduction attacks.reductions         The gradient as it is.
UnitMax         reduction attacks.reductions         The largest |entry| over a layer's units, one value per input.
Sketch          reduction attacks.reductions         Signed sums of entries, each entry in one of ``width`` sums.
Defense         defense   core.nouns                 No defense: the null object.
Pruning         defense   defenses.gradient          Keep the largest entries of the gradient and release the rest as zero.
Sign            defense   defenses.gradient          Release the sign of every entry (SignSGD, paper 000, 6.1).
LaplaceNoise    defense   defenses.gradient          Add Laplace noise of standard deviation ``std`` to every entry.
Noise           defense   defenses.gradient          Add Gaussian noise of standard deviation ``std`` to every entry of the batch's gradient.
Withhold        defense   defenses.gradient          Release zeros: with `Within`, layers that are neither shared nor trained.
FirstLayerLocal defense   defenses.gradient          Keep the first layer local: it is neither shared nor trained, and released as zeros.
HalfPrecision   defense   defenses.gradient          Release every entry in half precision: ``form`` is bfloat16 or float16.
AdversarialPerturbation defense   defenses.perturbation      Projected gradient steps on the released gradient against a classifier of the secret.
VIB             defense   defenses.bottleneck        A Gaussian bottleneck before the last layer, and ``beta`` times its divergence in the loss.
DPSGD           defense   defenses.dpsgd             Clip each record's gradient to norm ``clip`` and add Gaussian noise to the batch's mean.
MixupMMD        defense   defenses.training          Train on mixtures of records, and pull members' confidences towards those of held-out records.
FlowerLocalDp   defense   defenses.deployed          Flower's LocalDpMod: clip the update to norm ``clip``, add Gaussian noise to every entry.
FlowerFixedClipping defense   defenses.deployed          Flower's central differential privacy with fixed clipping, as it falls to one upload.
FlowerAdaptiveClipping defense   defenses.deployed          Flower's central differential privacy with adaptive clipping, as it falls to one upload in one round.
PercentilePrivacy defense   defenses.deployed          NVFlare's PercentilePrivacy: zero the entries below a percentile of their sizes, clip the rest.
SVTPrivacy      defense   defenses.deployed          NVFlare's SVTPrivacy: release a fraction of the entries, chosen by the sparse vector technique.
Within          defense   defenses.gradient          A defense limited to the named layers; the others are released as they are.
Chain           defense   defenses.gradient          Defenses one after the other.
MLP             model     models                     Fully connected net; 32-16 for tables, 64-64 for speech.
CNN             model     models                     The convolutional net of paper 000, table 3, for images of 32 x 32 pixels.
Linear          model     models                     One linear layer; ``zeros`` starts it at zero, where gradients have a closed form.
SharedEncoder   model     models.encoders            A `TableEncoder` whose head stays with the clients, as the model of a recording of its uploads.
LeNet           model     models                     LeNet-5 with ReLU and max-pooling: 6 and 16 filters of 5 x 5, then 120-84.
AlexNet         model     models                     AlexNet in its CIFAR form: five convolutions, global max-pooling and one linear layer.
DenseNet        model     models                     DenseNet-BC: three blocks of bottlenecks of 4 ``growth`` channels, compression 0.5, CIFAR stem.
ResNet18        model     models                     ResNet-18 with a CIFAR stem, 3 x 3 and no pooling; ``width`` channels in its first stage of four.
Frozen          model     models                     A backbone that is kept as it is and a new linear layer, ``fc``, in place of its last one.
VGG9            model     models                     VGG9 of paper 001: six convolutions of 8 to 32 filters of 3 x 3, then 256-128.
SmallAlexNet    model     models                     AlexNet as paper 001 has it: five convolutions of 8 to 32 filters, then 120-84.
SigmoidNet      model     models                     The net of DLG and iDLG: three convolutions of 12 filters, sigmoids and one linear layer.
TextClf         model     models                     The text classifier of paper 001: two convolutions of 16 filters, of 3 and of 8 words, then 50.
TextTransformer model     models                     A small transformer encoder for texts, torch's own, with learned places.
Bert            model     models                     BERT as Hugging Face's files have it, the mean over a text's words, and one linear layer.
Local           training  training                   A client's training in one round: ``epochs`` over its records, or ``steps`` batches if given.
MINE            estimator guards.estimators          Mutual information neural estimation (Belghazi et al., 2018): the lower bound `dv` of a learned critic.
InfoNCE         estimator guards.estimators          Contrastive predictive coding (van den Oord et al., 2018): the lower bound `infonce` of a learned critic among ``batch`` pairs, which is never above log(batch).
CLUB            estimator guards.estimators          The contrastive log-ratio upper bound (Cheng et al., 2020) of a learned q(y | x).
NearestNeighbours estimator guards.neighbours          Kraskov, Stoegbauer and Grassberger's estimator (2004, their first) from distances to the ``k``-th neighbour.
Inf2Guard       guard     guards.inf2guard           Train an encoder whose representations keep the task and lose a secret.
Guards          guard     guards.inf2guard           One encoder against several secrets, each with its weight.
TAPPFL          guard     guards.tappfl              Devices learn one encoder by federated averaging, each with its own privacy and utility network.
Unguarded       guard     guards.plain               Plain training of an encoder and a task head by Adam, which every baseline starts from.
DPEncoder       guard     guards.baselines           Gaussian noise on the frozen representations of plain training
DPParameters    guard     guards.baselines           Noise of standard deviation ``scale`` on every parameter of a plainly trained encoder
Compressed      guard     guards.baselines           A plainly trained encoder whose smallest parameters are set to 0
AdversarialTraining guard     guards.baselines           min CE_task - ``lam`` CE_private in alternating steps: the core of DeepObfuscator
DPFE            guard     guards.baselines           Task cross-entropy plus ``weight`` times a Gaussian estimate of I(r; u)
LAFTR           guard     guards.baselines           Task cross-entropy plus ``gamma`` times what an adversary gains, every value counting alike.
LEACE           guard     guards.erasure             The least change of a plain representation after which no linear attacker finds the secret.
INLP            guard     guards.erasure             Iterative null-space projection (Ravfogel et al., ACL 2020) of a plain representation.
Repaired        guard     guards.repaired            Plain representations, moved group by group to one distribution: whoever encodes must know the secret.
DPSGDGuard      guard     guards.dpsgd_guard         Encoder and head trained by DP-SGD: per-record clipping, noise and accounting are Opacus' own.
AdvReg          guard     guards.membership_baselines Adversarial regularisation (Nasr et al., 2018): CE + ``alpha`` (mean D(f(x), y) - .5) over members.
NeuGuard        guard     guards.membership_baselines NeuGuard (Xu et al., 2022): CE + ``alpha`` times imbalance of neurons + ``beta`` times output variance.
Distilled       guard     guards.distilled           Self-distillation of a split ensemble (SELENA; Tang et al., USENIX Security 2022).
Tuned           guard     audits.guards              A guard at the strength at which it is as useful, or as private, as another one: a fair comparison.
TableEncoder    encoder   models.encoders            Fully connected encoder with ReLU between its layers; 64-128 for tables.
ImageEncoder    encoder   models.encoders            Two convolutions of 3 x 3 with batch normalisation, ReLU between them; representations are images.
load_encoder    verb      guards.saved               The encoder that was saved in a folder; nothing is unpickled.
encode          verb      audits.guards.encoding     Write the representations of records by a saved encoder to a csv, Parquet or npz file.
export          verb      guards.exporting           Write an encoder as a program of tensors: .pt2 (torch.export) or .onnx (the extra "onnx").
tuned           verb      audits.guards              The guard ``make(value)`` whose attack or utility is nearest to ``target``, and what was tried.
GradientChannel channel   games.channels             Each observed round releases the batch's mean gradient at that round's parameters, through the defense.
UpdateChannel   channel   games.channels             Each observed round releases Γ = parameters - parameters after local training on the batch, through the defense.
RecordedChannel channel   training.recording         Each observed round releases what a recording holds of it, one trial for each client.
RepresentationChannel channel   games.representations      Releases the encoder's representation of each record, or the mean or largest of a batch's.
Through         channel   games.channels             The same channel seen through some of its layers only.
Summed          channel   games.channels             The mean of what ``clients`` release, all that a server sees of them under secure aggregation
Silent          channel   games.channels             Releases nothing: through it no attack may find anything.
Plain           channel   games.channels             Releases the secret's code, bit by bit: through it every attack must find everything.
success_rate    measure   measures.success           How often the likeliest secret was the right one (ASR).
advantage       measure   measures.success           The share of the gap between guessing and certainty that the release closed.
auroc           measure   measures.success           Area under the ROC curve, one-vs-rest and macro-averaged for more than two values.
tpr_at_fpr      measure   measures.success           Largest true positive rate of a threshold whose false positive rate is at most ``fpr``.
plr_at_fpr      measure   measures.membership        The positive likelihood ratio TPR / FPR at a false positive rate.
p_values        measure   measures.membership        Each trial's chance, were it no member, to score as high.
conformal       measure   measures.membership        What calling every record with a p-value of at most ``fpr`` a member finds.
discoveries     measure   measures.membership        The records to call members when many are asked about.
roc             measure   measures.success           The ROC curve as (false, true) positive rates.
guessing        measure   measures.success           The best success rate without the release.
over_seeds      measure   measures.success           The mean over seeds with Student's interval.
orthogonality   measure   measures.orthogonality     The cosines of ``among`` members, and of as many others, with all records given.
update_cosines  measure   measures.orthogonality     The cosine of each record's gradient with an update, layer by layer.
mutual_information measure   measures.information       A lower estimate of I(secret; release) in nats.
v_information   measure   measures.vinformation      What the release told the attack family.
sensitivity     measure   measures.sensitivity       Layer by layer, the mean norm of the Jacobian of the released gradient with respect to the first record of its batch.
subspace_distance measure   measures.subspace          Layer by layer, the distance between the column spaces of two mean gradients.
two_sample      measure   measures.subspace          The mean squared t-statistic between two groups over feature columns, against its permutation null.
layer_information measure   measures.mutual            I(X; G_l) or I(Y; G_l) for each layer l, G_l being what the channel releases of one record's gradient.
fidelity        measure   measures.fidelity          The mean over trials of how like its originals a reconstruction is
recovered       measure   measures.fidelity          The share of images whose SSIM is at least ``least``
failures        measure   measures.fidelity          The share of trials in which the attack gave up
exact_records   measure   measures.records           The share of records that came back exactly.
certified_records measure   measures.records           The share of records that came back exactly and that the attack had certified.
confident_cells measure   measures.records           Of records that are not certified: the share of all cells of which the attack is
false_certificates measure   measures.records           How many records in a batch the attack certified that are not there
found_words     measure   measures.texts             Recall and precision of the different words said (t of (n,)) of texts (t, k, length)
right_cells     measure   measures.records           Column by column, and of all under "all": the share of cells that are right
epsilon_lower_bound measure   measures.epsilon           The epsilon that the trials certify.
one_run_epsilon measure   measures.one_run           The epsilon that one run with canaries certifies.
accuracy        measure   measures.utility           Share of records whose likeliest label is right.
task_auroc      measure   measures.utility           AUROC of the task, macro one-vs-rest over the labels that occur.
load            data      data                       The dataset called ``name``.
from_csv        data      data                       A table with a header: csv of any kind, Parquet, Feather, Excel, or a DataFrame.
from_npz        data      data                       Arrays of an npz file by name; nothing in it is unpickled.
Batch           noun      core.dataset               Batches drawn from ``data``.
Column          noun      core.columns               One column of a table and the positions ``start:stop`` it takes in ``x``.
Dataset         noun      core.dataset               Records, the task's label, and what is private about each.
Estimate        noun      core.nouns                 A number that is never without its interval.
Encoder         noun      guards.encoder             From records to the representations that are shared in their place.
Guarded         noun      guards.encoder             An encoder, the privacy network that it was trained with (the stale attacker), and what was seen on the way.
GuardedEncoder  noun      guards.transformer         A guard as a transformer of scikit-learn: fit on records and labels, transform to representations.
Key             noun      guards.keys                A secret of at least 128 bits: whoever has it can take a release's noise off again.
ReleaseLedger   noun      guards.ledger              Count what was released of whom, and refuse, or warn, ``beyond`` so many different releases a person.
Perturbation    noun      guards.noise               What is added to a representation before it leaves.
Distance        noun      measures.subspace          How far apart a layer's mean gradients span, and how far by chance.
TwoSample       noun      measures.subspace          How much more two groups' features differ than random groups' do.
Knowledge       noun      core.nouns                 What the adversary may use.
Canaries        noun      training.recording         Which canaries were put into a training, each by the toss of a fair coin.
Recorder        noun      training.recording         Writes a recording beside a training loop of any kind, in three lines.
Recording       noun      training.recording         What a federation recorded, as it was when it was opened.
Release         noun      core.nouns                 What crosses the wire in one round.
Transcript      noun      core.nouns                 What happened; the only place where secrets and guesses meet.
View            noun      core.nouns                 All an adversary ever sees.
play            verb      games.referee              The adversary learns from its knowledge, the game deals, the adversary guesses.
audit           verb      run.api                    Attack every secret of a dataset through one victim's gradients.
audit_recording verb      run.api                    Tell which candidates the clients of a recorded federation trained on, from its updates.
localise        verb      run.api                    Find which layer of a model gives away what, and what protecting it costs.
reconstruct     verb      run.api                    Read records out of one gradient or upload, and prove which of them were there.
preflight       verb      run.api                    Foresee how many records can be read out of one release, before anything is trained.
guard           verb      run.api                    Train an encoder whose representations keep a task and lose a secret, and attack it anew.
tune            verb      run.api                    Find the cheapest defense that keeps a stated risk, against an adversary who knows it.
gate            verb      run.api                    Check reports or results folders, one or several, against a risk appetite
dossier         verb      run.api                    Write what may leave a trusted environment about some results folders
claim           verb      integrations.claims        Say which epsilon a deployed configuration really has, and whether it keeps what was promised.
compare         verb      run.api                    Compare two reports or results folders, cell by cell and measure by measure.
seeded          verb      core.rng                   The generator of one role.
"""

CATALOGUE: dict[str, Entry] = {
    name: Entry(f"leakscope.{module}", role, line)
    for name, role, module, line in (row.split(None, 3) for row in _TABLE.strip().splitlines())
}

DATA = {
    "adult": "Census table of 48,842 people, income; ships with leakscope.",
    "heart": "Heart disease of 920 patients at four hospitals; ships with leakscope.",
    "digits": "Handwritten digits, 1,797 images of 8 x 8; ships with scikit-learn.",
    "synthetic": "Made-up records whose best possible attack is known in closed form.",
    "health": "Insurance claims of 55,924 members, illness (LEAKSCOPE_DATA/health.npz).",
    "cremad": "Speech features of 91 speakers, emotion (LEAKSCOPE_DATA/cremad_emobase.npz).",
    "celeba": "Faces of 1,200 people, 40 attributes (LEAKSCOPE_DATA/celeba32.npz).",
    "utkface": "Faces, age group, ethnicity and gender (LEAKSCOPE_DATA/utkface32.npz).",
    "uci-adult": "Adult from UCI's files: a folder with adult.data and adult.test.",
    "celeba-folder": "CelebA as published: img_align_celeba/ and its two lists.",
    "utkface-folder": "UTKFace as published: a folder of age_gender_race_date.jpg.",
    "cremad-folder": "CREMA-D as published: wav files and VideoDemographics.csv.",
    "image-folder": "Images of your own: a folder that holds a folder for each class.",
    "cifar10": "Small photographs, 10 classes (LEAKSCOPE_DATA/cifar10.npz), or cifar-10-batches-bin.",
    "cifar100": "Small photographs, 100 classes (LEAKSCOPE_DATA/cifar100.npz), or cifar-100-binary.",
    "medical-mnist": "Scans of six kinds, 64 x 64 (LEAKSCOPE_DATA/medical_mnist64.npz).",
    "pneumonia": "Chest X-rays of 28 x 28, pneumonia (LEAKSCOPE_DATA/pneumoniamnist.npz).",
    "covid": "Chest X-rays of 418 patients, COVID-19 (LEAKSCOPE_DATA/covid_cxr64.npz).",
    "skin": "Skin images of 28 x 28, seven diagnoses (LEAKSCOPE_DATA/ham10000_28.npz).",
    "retina": "Retinas of 1,477 patients, four findings (LEAKSCOPE_DATA/oct64.npz).",
    "kidney": "Slices of kidneys, four findings (LEAKSCOPE_DATA/ct_kidney64.npz).",
    "bone-age": "X-rays of hands, older than 11 years or not (LEAKSCOPE_DATA/boneage32.npz).",
    "loans": "Mortgages of 36,982 people, affordable or not (LEAKSCOPE_DATA/loan.csv.gz).",
    "har561": "549 features of 30 people's moves, six activities (LEAKSCOPE_DATA/har561.npz).",
    "location30": "Check-ins of 5,010 people, 30 clusters (LEAKSCOPE_DATA/location30.npz), or bangkok.",
    "purchase100": "Purchases, 100 clusters (LEAKSCOPE_DATA/purchase100.npz), or dataset_purchase.",
    "texas100": "Hospital stays, 100 procedures (LEAKSCOPE_DATA/texas100.npz), or texas/100.",
    "purchase-like": "Synthetic: made-up records of Purchase100's shape, 600 features of 0 and 1.",
    "texas-like": "Synthetic: made-up records of Texas100's shape, 6,169 features of 0 and 1.",
    "census42": "Adult with the 42 inputs of Inf2Guard's census; ships with leakscope.",
    "mnist": "Handwritten digits of 28 x 28 (LEAKSCOPE_DATA/mnist.npz).",
    "lfw": "Faces of 311 people, 62 x 47, gender or identity (LEAKSCOPE_DATA/lfw_gray62x47.npz).",
    "imdb": "Film reviews as numbered words, sentiment (LEAKSCOPE_DATA/imdb.json.gz), or aclImdb.",
    "har": "Accelerations of 30 people, six activities (LEAKSCOPE_DATA/uci_har_acc.npz).",
    "lfw-folder": "LFW as published: a folder of images for each person and lfw_attributes.txt.",
    "pubfig-folder": "PubFig: a folder of faces for each person and pubfig_attributes.txt.",
    "har-folder": "UCI HAR as published: UCI HAR Dataset/ with 561 features.",
    "text-csv": "Texts of your own: a CSV with a column of text.",
}


@dataclass(frozen=True)
class KindEntry:
    """A kind of audit: its module ``kind``, the format of what it finds, the games of plans that are its own,
    what it asks, in words, and of how many records of a table at least."""

    module: str
    format: int
    games: tuple[str, ...]
    asks: str = ""
    fewest: int = 0


FEWEST_RECORDS = 80  # of a table of which a federation is simulated
KINDS = {  # the first is of every game that no other names
    "inference": KindEntry(
        "leakscope.audits.inference.kind", 2, (), "what updates tell about a private column or a person"
    ),
    "mechanism": KindEntry(
        "leakscope.audits.mechanism.kind", 2, ("AttributeAudit",), "the epsilon of a DP-SGD step"
    ),
    "membership": KindEntry(
        "leakscope.audits.membership.kind",
        2,
        ("MembershipAudit", "RecordingAudit"),
        "whose records a federation trained on",
        FEWEST_RECORDS,
    ),
    "sites": KindEntry(
        "leakscope.audits.sites.kind", 2, ("SiteAudit",), "what a site's uploads tell about the site"
    ),
    "questions": KindEntry("leakscope.audits.questions.kind", 2, ("QuestionAudit",)),  # of recordings alone
    "records": KindEntry(
        "leakscope.audits.records.kind",
        2,
        ("RecordsAudit", "RecordedRecords"),
        "which records come back from one upload",
    ),
    "layers": KindEntry(
        "leakscope.audits.layers.kind",
        2,
        ("LayerAudit",),
        "which layer gives a secret away, and whether inputs can be rebuilt",
    ),
    "guards": KindEntry(
        "leakscope.audits.guards.kind", 2, ("GuardAudit",), "what representations behind a guard give away"
    ),
}


def roles(*wanted: str) -> dict[str, Entry]:
    """The entries of these roles, in catalogue order."""
    return {name: entry for name, entry in CATALOGUE.items() if entry.role in wanted}
